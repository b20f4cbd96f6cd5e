#include "server/runner/sessions.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {

void Mailbox::Put(wire::DownMessage message) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    // To the end, not into the old one's place: Propose 5, Cancel 5, Propose 6 must not become
    // Propose 6, Cancel 5.
    std::erase_if(messages_, [&message](const wire::DownMessage& unsent) {
      return unsent.index() == message.index();
    });
    messages_.push_back(std::move(message));
  }
  callbacks_.wake();
}

void Mailbox::Close(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = std::move(status);
  }
  callbacks_.wake();
}

std::optional<wire::DownMessage> Mailbox::Take() {
  const std::lock_guard lock(mutex_);
  if (messages_.empty()) return std::nullopt;
  std::optional<wire::DownMessage> message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

std::optional<absl::Status> Mailbox::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

size_t Mailbox::size() const {
  const std::lock_guard lock(mutex_);
  return messages_.size();
}

absl::StatusOr<core::SessionId> Sessions::Open(std::shared_ptr<Mailbox> mailbox, absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (!accepting_) return Unavailable("the daemon drains, retry later");
  if (std::ssize(sessions_) >= limits_.max_sessions) {
    if (!limits_.no_more.empty()) return ResourceExhausted(limits_.no_more);
    return ResourceExhausted("limits.max_sessions = ", limits_.max_sessions, " streams are open");
  }
  sessions_[++last_] = {.mailbox = std::move(mailbox), .hello_by = now + limits_.hello_deadline};
  return last_;
}

void Sessions::Spoke(core::SessionId session) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.hello_by = absl::InfiniteFuture();
}

void Sessions::Remove(core::SessionId session) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const bool spoke = found->second.hello_by == absl::InfiniteFuture();
  if (found->second.closed && spoke) closed_.insert(session);
  sessions_.erase(found);
  if (sessions_.empty()) empty_.notify_all();
}

std::shared_ptr<Mailbox> Sessions::Find(core::SessionId session) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.mailbox;
}

void Sessions::Send(core::SessionId session, wire::DownMessage message) {
  if (const std::shared_ptr<Mailbox> mailbox = Find(session)) mailbox->Put(std::move(message));
}

void Sessions::Close(core::SessionId session, absl::Status status) {
  std::shared_ptr<Mailbox> mailbox;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;
    found->second.closed = true;
    mailbox = found->second.mailbox;
  }
  mailbox->Close(std::move(status));
}

void Sessions::ReadOn(core::SessionId session) {
  if (const std::shared_ptr<Mailbox> mailbox = Find(session)) mailbox->ReadOn();
}

bool Sessions::WasClosed(core::SessionId session) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? closed_.contains(session) : found->second.closed;
}

void Sessions::Forget(core::SessionId session) {
  const std::lock_guard lock(mutex_);
  closed_.erase(session);
}

int32_t Sessions::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(sessions_.size());
}

void Sessions::NoteRefused(const absl::Status& why, absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (now - refused_at_ > kRefusalTold) refused_ = 0;
  ++refused_;
  refused_why_ = std::string(why.message());
  refused_at_ = now;
}

std::string Sessions::RefusedText(absl::Time now) const {
  const std::lock_guard lock(mutex_);
  if (now - refused_at_ > kRefusalTold) return "";
  const absl::Duration age = absl::Trunc(now - refused_at_, absl::Seconds(1));
  return absl::StrCat(refused_, refused_ == 1 ? " stream" : " streams",
                      " found no place, the newest ", absl::FormatDuration(age),
                      " ago, and their ranks are not balanced: ", refused_why_);
}

void Sessions::StopAccepting() {
  const std::lock_guard lock(mutex_);
  accepting_ = false;
}

void Sessions::CloseAll(const absl::Status& status) {
  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, session] : sessions_) mailboxes.push_back(session.mailbox);
  }
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes) mailbox->Close(status);
}

void Sessions::Expire(absl::Time now) {
  std::vector<std::shared_ptr<Mailbox>> silent;
  std::vector<std::shared_ptr<Mailbox>> stuck;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, session] : sessions_) {
      if (session.mailbox->closing()) {
        session.close_by = std::min(session.close_by, now + kCloseDeadline);
        if (now >= session.close_by) stuck.push_back(session.mailbox);
      } else if (now >= session.hello_by) {
        silent.push_back(session.mailbox);
      }
    }
  }
  for (const std::shared_ptr<Mailbox>& mailbox : silent) {
    mailbox->Close(
        DeadlineExceeded("no Hello within ", absl::FormatDuration(limits_.hello_deadline)));
  }
  for (const std::shared_ptr<Mailbox>& mailbox : stuck) mailbox->Cancel();
}

bool Sessions::WaitUntilEmpty(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return empty_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                         [this] { return sessions_.empty(); });
}

}  // namespace eplb
