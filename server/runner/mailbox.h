// What waits to be sent on one rank's stream.
#ifndef EPLB_SERVER_RUNNER_MAILBOX_H_
#define EPLB_SERVER_RUNNER_MAILBOX_H_

#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "absl/status/status.h"

#include "proto/wire/messages.h"

namespace eplb {

// Latest wins: a message replaces the unsent one of its kind, so that a rank that does not read
// costs at most one message of each kind. threads: safe; callbacks are called without a lock held.
class Mailbox {
 public:
  struct Callbacks {
    std::function<void()> wake;    // something to send, or to end
    std::function<void()> cancel;  // end the stream without waiting for the peer
  };
  explicit Mailbox(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  // Ignored after Close.
  void Put(wire::DownMessage message);
  // The stream ends with this status once the messages before it are sent. The first one wins.
  void Close(absl::Status status);
  void Cancel() { callbacks_.cancel(); }

  // The stream's side: the oldest message.
  std::optional<wire::DownMessage> Take();
  // Set once Close was called.
  std::optional<absl::Status> closing() const;
  size_t size() const;

 private:
  const Callbacks callbacks_;
  mutable std::mutex mutex_;  // guards what follows
  std::deque<wire::DownMessage> messages_;
  std::optional<absl::Status> closing_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_RUNNER_MAILBOX_H_
