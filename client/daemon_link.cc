#include "client/daemon_link.h"

namespace eplb {

void DaemonLink::Connect(SessionOptions options) {
  const absl::MutexLock lock(&mutex_);
  session_ = std::make_unique<Session>(std::move(options), *member_);
}

void DaemonLink::Close() {
  if (session_ != nullptr) session_->Close();
}

void DaemonLink::AddStats(ClientStats& stats) const {
  const absl::MutexLock lock(&mutex_);
  if (session_ == nullptr) return;
  const SessionStats session = session_->stats();
  stats.connected = session.connected;
  stats.reconnects = session.reconnects;
  stats.reports_sent = session.reports_sent;
  stats.refusals = session.refusals;
  stats.unknown_messages = session.unknown_messages;
  stats.disconnected_seconds = session.disconnected_seconds;
  stats.dropped_steps = member_->dropped_steps();
  stats.session_waits_over_1ms = member_->long_waits();
}

}  // namespace eplb
