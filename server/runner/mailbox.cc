#include "server/runner/mailbox.h"

#include <utility>

namespace eplb {

void Mailbox::Put(wire::DownMessage message) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    // To the end, not into the old one's place: Propose 5, Retract 5, Propose 6 must not become
    // Propose 6, Retract 5.
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

}  // namespace eplb
