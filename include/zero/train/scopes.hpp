// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The scopes that a pass gives out: weights of a unit while they are gathered, gradients of a unit while they are written.

#include <cstdint>
#include <exception>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/train/unit_view.hpp>

namespace zero {

/// The weights of a unit that were gathered for use; lets go of them when destroyed. Movable, empty by default, storable. Several may be open
/// at once, also of one unit, and end in any order. Letting go communicates nothing. The pass's parameters must outlive it; pointers and views taken
/// from it are valid while it is open.
///
/// Where a stage's parameters are Replicated, `gather` returns a plain `UnitView` instead: there is nothing to let go of. Under a communicator
/// that checks (`Checked`) it is a scope there too, so that what would be an error at Stage3 is one at Stage0.
template <class Engine>
class GatheredUnit : public UnitView<typename Engine::parameter const> {
  using View = UnitView<typename Engine::parameter const>;

public:
  GatheredUnit() = default;
  GatheredUnit(Engine& engine, View view) noexcept : View(view), engine_(&engine) {}
  GatheredUnit(GatheredUnit&& other) noexcept : View(std::exchange(other.view(), View{})), engine_(std::exchange(other.engine_, nullptr)) {}
  GatheredUnit& operator=(GatheredUnit&& other) noexcept {
    if (this != &other) {
      release();
      view() = std::exchange(other.view(), View{});
      engine_ = std::exchange(other.engine_, nullptr);
    }
    return *this;
  }
  ~GatheredUnit() { release(); }

  /// Lets go now; the scope is empty afterwards. What the caller has enqueued on the compute stream may still read the weights.
  void release() noexcept {
    if (Engine* const engine = std::exchange(engine_, nullptr)) {
      engine->release_weights(this->unit());
      view() = View{};
    }
  }
  [[nodiscard]] bool empty() const noexcept { return engine_ == nullptr; }

  /// As in `UnitView`, of a scope that lasts: the weights behind what a temporary one gives are gone at the end of the statement.
  [[nodiscard]] auto* operator[](detail::PositionAt at) const& { return View::operator[](at); }
  [[nodiscard]] auto* operator[](detail::NameAt at) const& { return View::operator[](at); }
  [[nodiscard]] auto* data(ParameterId id, SourceLocation where = SourceLocation::current()) const& { return View::data(id, where); }
  void operator[](detail::PositionAt) const&& = delete;
  void operator[](detail::NameAt) const&& = delete;
  void data(ParameterId, SourceLocation = SourceLocation::current()) const&& = delete;

private:
  [[nodiscard]] View& view() noexcept { return *this; }

  Engine* engine_ = nullptr;
};

/// `auto [w, b] = zero::pointers<2>(pass.gather(unit));` would give pointers to weights that are gone: name the scope.
template <int N, class Engine>
void pointers(GatheredUnit<Engine> const&&, SourceLocation = SourceLocation::current()) = delete;

/// The gradients of a unit, full-size, to be added to: they hold zero, or the sum so far. `hand_over()` says that they are complete; nothing
/// is sent before. Movable, empty by default, storable.
///
/// Destroyed without `hand_over()`, nothing is sent: the pass is abandoned, and `finish()` and `step()` throw and name the unit. When that
/// happens because an exception passes through, the group is aborted, so that peers throw too.
template <class Engine>
class Gradients : public UnitView<typename Engine::gradient> {
  using View = UnitView<typename Engine::gradient>;

public:
  Gradients() = default;
  /// @param pass  Number of the pass that they belong to.
  Gradients(Engine& engine, std::uint64_t pass, View view) noexcept
      : View(view), engine_(&engine), pass_(pass), exceptions_(std::uncaught_exceptions()) {}
  Gradients(Gradients&& other) noexcept
      : View(std::exchange(other.view(), View{})),
        engine_(std::exchange(other.engine_, nullptr)),
        pass_(other.pass_),
        exceptions_(other.exceptions_) {}
  Gradients& operator=(Gradients&& other) noexcept {
    if (this != &other) {
      abandon();
      view() = std::exchange(other.view(), View{});
      engine_ = std::exchange(other.engine_, nullptr);
      pass_ = other.pass_;
      exceptions_ = other.exceptions_;
    }
    return *this;
  }
  ~Gradients() { abandon(); }

  /// The gradients are complete: converts them to the stage's placement of gradients. The scope is empty afterwards.
  /// @throws UsageError for an empty scope, or if the pass has ended; CommunicationError where a peer failed.
  /// @par Communication
  /// Collective where gradients accumulate Sharded (a reduce-scatter of each segment) or Replicated (an all-reduce), and, where they
  /// accumulate Partial, in the last pass of a step. A segment that several units use goes when the last of them is handed over.
  /// @par Stream order
  /// Everything enqueued on the compute stream so far is part of the gradients.
  void hand_over(SourceLocation where = SourceLocation::current()) {
    Engine* const engine = std::exchange(engine_, nullptr);
    if (engine == nullptr) throw UsageError("hand_over: this scope holds no gradients: it was moved from or handed over already", where);
    engine->hand_over_gradients(pass_, this->unit(), where);
    view() = View{};
  }

  /// Whether this scope is the first to write the parameter's gradient since it was zero. A caller that opened the scope with
  /// `{.zeroed = false}` must then overwrite it, and add otherwise.
  /// @throws UsageError for an empty scope; LayoutError for a parameter that the unit does not use.
  [[nodiscard]] bool first_use(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    if (engine_ == nullptr) throw UsageError("first_use: this scope holds no gradients", where);
    return engine_->first_use_of_gradient(this->unit(), id, where);
  }
  [[nodiscard]] bool empty() const noexcept { return engine_ == nullptr; }

private:
  [[nodiscard]] View& view() noexcept { return *this; }

  void abandon() noexcept {
    if (Engine* const engine = std::exchange(engine_, nullptr)) {
      engine->abandon_gradients(pass_, this->unit(), std::uncaught_exceptions() > exceptions_);
      view() = View{};
    }
  }

  Engine* engine_ = nullptr;
  std::uint64_t pass_ = 0;
  int exceptions_ = 0;
};

}  // namespace zero
