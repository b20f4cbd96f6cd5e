// The state of an eplb_client, and the rules that every call on it follows.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"

#include "base/errors.h"
#include "base/wait_check.h"
#include "client/c/call.h"
#include "client/c/eplb.h"
#include "client/c/structs.h"
#include "client/client.h"
#include "client/fork_guard.h"

// The struct of the ABI is in no namespace. Threads: the training thread, except where a member is
// atomic.
// NOLINTNEXTLINE(readability-identifier-naming)
struct eplb_client {
  eplb_client() = default;
  eplb_client(const eplb_client&) = delete;
  eplb_client& operator=(const eplb_client&) = delete;
  ~eplb_client() { delete client.load(); }

  // Returns the name, terminated by 0. Valid until the next call.
  const char* NameOfTransport() const {
    transport = client.load()->transport();
    return transport.c_str();
  }

  const eplb::ForkGuard fork_guard;
  eplb_wait wait = nullptr;  // may be null
  void* wait_user = nullptr;
  std::atomic<eplb::Client*> client = nullptr;   // set once, by connect
  std::atomic<const char*> under_way = nullptr;  // name of the call that runs
  std::atomic<bool> closed = false;
  std::string message;            // message of the last failed call
  eplb::BoundaryResult boundary;  // newest result, which owns the strings that callers see
  mutable std::string transport;  // owns the string that callers see
};

namespace eplb::c {

// Value of a figure without a sample.
inline constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();

enum class Needs {
  kNothing,
  kConnected,  // also after close
  kOpen,
};

// Checks that the client's state allows the call `name`. errors: InvalidArgument for NULL,
// FailedPrecondition for another state than the call needs.
absl::Status CheckState(const eplb_client* handle, const char* name, Needs needs);

// Makes `name` the call that runs, for the life of the object.
class Turn {
 public:
  Turn(eplb_client& handle, const char* name);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  // FailedPrecondition, naming both calls, if another call runs.
  const absl::Status& status() const { return status_; }

 private:
  eplb_client& handle_;
  absl::Status status_;
};

// Runs a call of the training thread, `body`: () -> absl::Status. In a forked child it does nothing
// and returns OK.
template <class Body>
int32_t CallOnTrainingThread(eplb_client* handle, const char* name, Needs needs,
                             Body&& body) noexcept {
  bool ours = false;  // if false, the message is that of the call that runs
  const int32_t code = CatchAll([&]() -> absl::Status {
    if (handle == nullptr) return CheckState(handle, name, needs);
    if (handle->fork_guard.InForkedChild()) return absl::OkStatus();
    const Turn turn(*handle, name);
    if (!turn.status().ok()) return turn.status();
    ours = true;
    if (absl::Status status = CheckState(handle, name, needs); !status.ok()) return status;
    if (handle->wait == nullptr) return body();
    const WaitCheck check(
        [handle] { return CallBack([&] { return handle->wait(handle->wait_user); }); });
    return body();
  });
  if (ours && code != EPLB_OK) {
    // If there is no memory for a copy, eplb_last_message() still has the message.
    (void)CatchAll([&] {
      handle->message = eplb_last_message();
      return absl::OkStatus();
    });
  }
  return code;
}

// Runs a call that only reads, which callbacks may make.
template <class Body>
int32_t ReadOnlyCall(const eplb_client* handle, const char* name, Needs needs,
                     Body&& body) noexcept {
  return CatchAll([&]() -> absl::Status {
    if (absl::Status status = CheckState(handle, name, needs); !status.ok()) return status;
    return body();
  });
}

// Runs `body`, (Client&) -> absl::Status, on a client that is open, on the training thread.
template <class Body>
int32_t Act(eplb_client* handle, const char* name, Body&& body) noexcept {
  return CallOnTrainingThread(handle, name, Needs::kOpen,
                              [&] { return body(*handle->client.load()); });
}

// Runs `body`, (Client&) -> absl::Status, on a client that is connected, and only reads.
template <class Body>
int32_t Read(const eplb_client* handle, const char* name, Body&& body) noexcept {
  return ReadOnlyCall(handle, name, Needs::kConnected,
                      [&] { return body(*handle->client.load()); });
}

// errors: InvalidArgument, naming the argument.
inline absl::Status CheckNotNull(const char* name, const void* argument) {
  if (argument != nullptr) return absl::OkStatus();
  return InvalidInput(name, " is NULL");
}

}  // namespace eplb::c
