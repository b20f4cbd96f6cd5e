// Ends of unary calls: at once with a status, or later with an outcome of the core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "proto/wire/status.h"
#include "server/core/values/events.h"

namespace eplb {

// Returns a number of a request as the core counts; one that does not fit becomes the largest.
inline int64_t Clamped(uint64_t number) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(number, kMost));
}

using CallContext = grpc::CallbackServerContext;
using CallReactor = grpc::ServerUnaryReactor;

// Ends a call at once.
inline CallReactor* Done(CallContext* context, const absl::Status& status) {
  CallReactor* reactor = context->DefaultReactor();
  reactor->Finish(wire::ToGrpc(status));
  return reactor;
}

// Ends its call on the core's thread, or at the deadline of the runner's desk, so that no thread of
// gRPC waits. It deletes itself.
class OutcomeReactor : public CallReactor {
 public:
  // fill: writes the outcome into the response, which outlives the call.
  explicit OutcomeReactor(std::function<void(const core::ChangeOutcome&)> fill)
      : fill_(std::move(fill)) {}

  // ask: takes the callback for the outcome. Unless it returns OK, it never calls the callback.
  template <class Ask>
  void Start(Ask ask) {
    const absl::Status asked = ask([this](const absl::StatusOr<core::ChangeOutcome>& outcome) {
      if (outcome.ok()) fill_(*outcome);
      Finish(wire::ToGrpc(outcome.status()));
    });
    if (!asked.ok()) Finish(wire::ToGrpc(asked));
  }

  void OnDone() override { delete this; }

 private:
  const std::function<void(const core::ChangeOutcome&)> fill_;
};

}  // namespace eplb
