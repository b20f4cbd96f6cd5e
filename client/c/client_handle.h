// What is behind an eplb_client.
#ifndef EPLB_CLIENT_C_CLIENT_HANDLE_H_
#define EPLB_CLIENT_C_CLIENT_HANDLE_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"

#include "client/c/eplb.h"
#include "client/c/report.h"
#include "client/client.h"
#include "client/forks.h"

// The struct of the ABI is in no namespace. Threads: the training thread, except where a member is
// atomic.
// NOLINTNEXTLINE(readability-identifier-naming)
struct eplb_client {
  eplb_client() = default;
  eplb_client(const eplb_client&) = delete;
  eplb_client& operator=(const eplb_client&) = delete;
  ~eplb_client() { delete client.load(); }

  // As C wants it. Valid until the next call.
  const char* NameOfTransport() const {
    transport = client.load()->transport();
    return transport.c_str();
  }

  const eplb::Birthplace birthplace;
  std::atomic<eplb::Client*> client = nullptr;   // set once, by connect
  std::atomic<const char*> under_way = nullptr;  // the call that is
  std::atomic<bool> closed = false;
  std::string message;            // of the last call that failed
  eplb::BoundaryResult boundary;  // the newest; owns the strings that callers see
  mutable std::string transport;  // likewise
};

namespace eplb::c {

enum class Needs {
  kNothing,
  kConnected,  // also after close
  kOpen,
};

// Whether this call on the client, named `name`, can be; errors: InvalidArgument for NULL,
// FailedPrecondition for a state that is not what it needs.
absl::Status CheckState(const eplb_client* handle, const char* name, Needs needs);

// Makes `name` the call under way, for as long as it lives.
class Turn {
 public:
  Turn(eplb_client& handle, const char* name);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  // FailedPrecondition, naming both calls, when another one is under way.
  const absl::Status& status() const { return status_; }

 private:
  eplb_client& handle_;
  absl::Status status_;
};

// A call of the training thread that does something: `body` is () -> absl::Status. In a forked
// child it is OK and nothing.
template <class Body>
int32_t Act(eplb_client* handle, const char* name, Needs needs, Body&& body) noexcept {
  bool ours = false;  // else the message is that of the call under way
  const int32_t code = Guarded([&]() -> absl::Status {
    if (handle == nullptr) return CheckState(handle, name, needs);
    if (handle->birthplace.IsElsewhere()) return absl::OkStatus();
    const Turn turn(*handle, name);
    if (!turn.status().ok()) return turn.status();
    ours = true;
    if (absl::Status status = CheckState(handle, name, needs); !status.ok()) return status;
    return body();
  });
  if (ours && code != EPLB_OK) {
    // Without memory even for the message, eplb_last_message() has it.
    (void)Guarded([&] {
      handle->message = eplb_last_message();
      return absl::OkStatus();
    });
  }
  return code;
}

// A call that only reads, and may be made inside callbacks.
template <class Body>
int32_t Look(const eplb_client* handle, const char* name, Needs needs, Body&& body) noexcept {
  return Guarded([&]() -> absl::Status {
    if (absl::Status status = CheckState(handle, name, needs); !status.ok()) return status;
    return body();
  });
}

}  // namespace eplb::c

#endif  // EPLB_CLIENT_C_CLIENT_HANDLE_H_
