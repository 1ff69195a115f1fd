// SPDX-License-Identifier: Apache-2.0
/// @file
/// The main function of every test program.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "support/ranks.hpp"

namespace {

int ranks_of_this_run = 4;
bool nothing_ran = false;

bool read_ranks(std::string_view text) {
  int value = 0;
  char const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < 1) {
    return false;
  }
  ranks_of_this_run = value;
  return true;
}

/// Notices a run in which no test case was selected: a program that checks nothing must not pass.
struct EmptyRunListener : doctest::IReporter {
  explicit EmptyRunListener(doctest::ContextOptions const&) {}
  void report_query(doctest::QueryData const&) override {}
  void test_run_start() override {}
  void test_run_end(doctest::TestRunStats const& stats) override { nothing_ran = stats.numTestCasesPassingFilters == 0; }
  void test_case_start(doctest::TestCaseData const&) override {}
  void test_case_reenter(doctest::TestCaseData const&) override {}
  void test_case_end(doctest::CurrentTestCaseStats const&) override {}
  void test_case_exception(doctest::TestCaseException const&) override {}
  void subcase_start(doctest::SubcaseSignature const&) override {}
  void subcase_end() override {}
  void log_assert(doctest::AssertData const&) override {}
  void log_message(doctest::MessageData const&) override {}
  void test_case_skipped(doctest::TestCaseData const&) override {}
};

DOCTEST_REGISTER_LISTENER("empty_run", 1, EmptyRunListener);

}  // namespace

int zero::test::ranks() noexcept { return ranks_of_this_run; }

int main(int argc, char** argv) {
  constexpr std::string_view ranks_option = "--ranks=";
  for (int i = 1; i < argc; ++i) {
    std::string_view const argument = argv[i];
    if (argument.starts_with(ranks_option) && !read_ranks(argument.substr(ranks_option.size()))) {
      std::fprintf(stderr, "%s: expected a number of ranks of at least 1\n", argv[i]);
      return 2;
    }
  }
  doctest::Context context(argc, argv);
  int const result = context.run();
  if (context.shouldExit()) {
    return result;
  }
  if (nothing_ran) {
    std::fprintf(stderr, "no test case was run\n");
    return 1;
  }
  return result;
}
