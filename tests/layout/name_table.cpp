// SPDX-License-Identifier: Apache-2.0
#include <zero/layout/name_table.hpp>

#include <doctest/doctest.h>

#include <string>

namespace {

using zero::detail::NameTable;

constexpr NameTable three_names() {
  NameTable table;
  table.add("h.1");
  table.add("h.1.bias");
  table.add("h.1.");
  return table;
}

static_assert(three_names().size() == 3 && three_names().find("h.1.bias") == 1 && three_names().find("h.2") == NameTable::none);
// A constant expression has no access to freed memory: this does not compile where a name is read after the table has grown.
constexpr bool parts_of_names_become_names() {
  NameTable table;
  table.add("transformer.h.0");
  for (std::int32_t i = 0; i < 14; ++i) {
    table.add(table[i].substr(1));
  }
  return table.size() == 15 && table[1] == "ransformer.h.0" && table[14] == "0" && table.find("former.h.0") == 5 && table.find("") == -1;
}
static_assert(parts_of_names_become_names());
static_assert(NameTable{}.find("h.1") == NameTable::none && NameTable{}.find("h", "1") == NameTable::none);
static_assert(three_names().find("h.1", "bias") == 1 && three_names().find("h", "1.bias") == 1 && three_names().find("h.1", "") == 2);
static_assert(three_names().find("h.1b", "ias") == NameTable::none && three_names().find("h.1", "bia") == NameTable::none);

TEST_CASE("names_are_found_through_all_growth_and_in_copies") {
  NameTable table;
  for (int i = 0; i < 3000; ++i) {
    CHECK(table.add(std::string("name ") + std::to_string(i)) == i);
  }
  NameTable const copy = table;
  NameTable const moved = std::move(table);
  int wrong = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string const name = std::string("name ") + std::to_string(i);
    wrong += copy[i] == name && copy.find(name) == i && moved.find(name) == i && moved.find(name + "x") == NameTable::none ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(copy.size() == 3000);
}

TEST_CASE("a_copy_is_independent_and_assignment_replaces") {
  NameTable first = three_names();
  NameTable second = first;
  second.add("only here");
  CHECK(first.find("only here") == NameTable::none);
  first = second;
  CHECK(first.find("only here") == 3);
  NameTable const& self = first;
  first = self;
  CHECK(first.find("h.1.bias") == 1);
}

TEST_CASE("a_part_of_a_name_becomes_a_name") {
  CHECK(parts_of_names_become_names());
  NameTable table;
  table.add(std::string(1000, 'a') + "b");
  for (std::int32_t i = 0; i < 1000; ++i) {
    table.add(table[i].substr(1));
  }
  int wrong = 0;
  for (std::int32_t i = 0; i <= 1000; ++i) {
    std::string const name = std::string(static_cast<std::size_t>(1000 - i), 'a') + "b";
    wrong += table[i] == name && table.find(name) == i ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("equal_names_have_equal_hashes_and_others_do_not") {
  CHECK(three_names().hash(1) == three_names().hash(1));
  CHECK(three_names().hash(0) != three_names().hash(2));
}

}  // namespace
