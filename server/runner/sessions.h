// The open streams by number.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "server/core/values/events.h"

namespace eplb {

// The messages that wait to be sent on one rank's stream.

// Latest wins: a message replaces the unsent one of its kind, so that a rank that does not read
// costs at most one message of each kind. threads: safe; callbacks are called without a lock held.
class Mailbox {
 public:
  struct Callbacks {
    std::function<void()> wake;          // something to send, or to end
    std::function<void()> cancel;        // end the stream without waiting for the peer
    std::function<void()> read = [] {};  // read on, after Admission::kQueuedLast
  };
  explicit Mailbox(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  // Ignored after Close.
  void Put(wire::DownMessage message);
  // The stream ends with this status once the messages before it are sent. The first one wins.
  void Close(absl::Status status);
  void Cancel() { callbacks_.cancel(); }
  void ReadOn() { callbacks_.read(); }

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

// threads: safe. Sending to a stream that is gone does nothing.
class Sessions {
 public:
  struct Limits {
    int32_t max_sessions = 20000;
    std::string no_more = {};  // text of a refusal; empty: limits.max_sessions
    absl::Duration hello_deadline = absl::Seconds(10);  // from Open to Spoke
  };
  // From Close to the end of the stream; after it the stream is cancelled.
  static constexpr absl::Duration kCloseDeadline = absl::Seconds(5);
  // A refused stream is told for so long. Clients try again within 30 s.
  static constexpr absl::Duration kRefusalTold = absl::Minutes(2);

  explicit Sessions(Limits limits) : limits_(std::move(limits)) {}

  // errors: ResourceExhausted above max_sessions, Unavailable after StopAccepting.
  absl::StatusOr<core::SessionId> Open(std::shared_ptr<Mailbox> mailbox, absl::Time now);
  // The stream's first message came.
  void Spoke(core::SessionId session);
  // The stream is over.
  void Remove(core::SessionId session);

  void Send(core::SessionId session, wire::DownMessage message);
  void Close(core::SessionId session, absl::Status status);
  // The stream may read again after Admission::kQueuedLast.
  void ReadOn(core::SessionId session);
  // True once Close was called, also after the stream's end until Forget.
  bool WasClosed(core::SessionId session) const;
  // Nothing of this session waits for the core any longer.
  void Forget(core::SessionId session);
  int32_t count() const;

  // A stream found no place, here or at another limit: its rank is not balanced, and no job's view
  // shows it, since its Hello was not read.
  void NoteRefused(const absl::Status& why, absl::Time now);
  // "3 streams found no place, the newest 4s ago: ..."; empty without one in kRefusalTold.
  std::string RefusedText(absl::Time now) const;

  void StopAccepting();
  void CloseAll(const absl::Status& status);
  // Closes streams without a first message in time and cancels those that do not end.
  void Expire(absl::Time now);
  // True when no stream is left before the timeout.
  bool WaitUntilEmpty(absl::Duration timeout);

 private:
  struct Session {
    std::shared_ptr<Mailbox> mailbox;
    absl::Time hello_by;                           // infinite once it spoke
    absl::Time close_by = absl::InfiniteFuture();  // set by the first Expire that finds it closing
    bool closed = false;                           // by Close
  };
  std::shared_ptr<Mailbox> Find(core::SessionId session) const;

  const Limits limits_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable empty_;
  std::map<core::SessionId, Session> sessions_;
  std::set<core::SessionId> closed_;  // removed ones that spoke, until Forget
  core::SessionId last_ = 0;
  bool accepting_ = true;
  int64_t refused_ = 0;  // in a row, each within kRefusalTold of the one before
  std::string refused_why_;
  absl::Time refused_at_ = absl::InfinitePast();
};

}  // namespace eplb
