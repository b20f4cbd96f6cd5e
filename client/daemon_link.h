// A rank's part of the protocol and, if the job has a daemon, the session that carries it.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "client/client.h"
#include "client/session/session.h"
#include "client/session/shared_member.h"

namespace eplb {

// Threads: the training thread, except AddStats, which is for any.
class DaemonLink {
 public:
  void SetMember(std::unique_ptr<SharedMember> member) { member_ = std::move(member); }
  // REQUIRES: SetMember was called.
  SharedMember& member() { return *member_; }

  // Begins to connect to the daemons of `options`.
  void Connect(SessionOptions options) ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_session() const { return session_ != nullptr; }
  void Close();
  // Adds the figures of the session, if there is one.
  void AddStats(ClientStats& stats) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::unique_ptr<SharedMember> member_;
  mutable absl::Mutex mutex_;
  std::unique_ptr<Session> session_;  // set once, under mutex_
};

}  // namespace eplb
