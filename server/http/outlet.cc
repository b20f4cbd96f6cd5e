// One thread that polls the peers that have not read all of their answers.
#include "server/http/outlet.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"

namespace eplb {

namespace {

// Ends a connection whose answer is sent.
void EndAnswered(const Descriptor& peer) {
  (void)shutdown(peer.get(), SHUT_WR);
  // Unread bytes of the peer would make the kernel discard the answer.
  std::array<char, 4096> rest;
  constexpr int kMaxReads = 16;
  for (int i = 0; i < kMaxReads && recv(peer.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0;) {
    ++i;
  }
}

}  // namespace

Outlet::Outlet(Limits limits) : limits_(limits), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Outlet::Sent Outlet::SendRest(Writing& writing) {
  const size_t before = writing.sent;
  while (writing.sent < writing.answer.size()) {
    const ssize_t sent = send(writing.peer.get(), writing.answer.data() + writing.sent,
                              writing.answer.size() - writing.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      writing.sent += static_cast<size_t>(sent);
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return Sent::kFailed;
    return writing.sent > before ? Sent::kSome : Sent::kNothing;
  }
  EndAnswered(writing.peer);
  return Sent::kAll;
}

void Outlet::Post(Descriptor peer, std::string answer) {
  (void)setsockopt(peer.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
  const absl::Time now = MonotonicNow();
  Writing writing{.peer = std::move(peer), .answer = std::move(answer), .moved = now, .began = now};
  const Sent sent = SendRest(writing);
  if (sent == Sent::kAll || sent == Sent::kFailed) return;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    posted_.push_back(std::move(writing));
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Outlet::Run() {
  while (TakePosted()) {
    DropSurplus();
    WaitAndWrite();
    DropSlow(MonotonicNow());
  }
}

void Outlet::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

bool Outlet::TakePosted() {
  const std::lock_guard lock(mutex_);
  for (const Writing& writing : posted_) bytes_ += writing.answer.size();
  writings_.splice(writings_.end(), posted_);
  return !stopped_;
}

std::list<Outlet::Writing>::iterator Outlet::Drop(std::list<Writing>::iterator writing) {
  bytes_ -= writing->answer.size();
  return writings_.erase(writing);
}

void Outlet::DropSurplus() {
  while (writings_.size() > limits_.max_answers ||
         (bytes_ > limits_.max_bytes && writings_.size() > 1)) {
    ++crowded_;
    (void)Drop(writings_.begin());
  }
}

absl::Time Outlet::NextEnd() const {
  absl::Time end = absl::InfiniteFuture();
  for (const Writing& writing : writings_) {
    end = std::min({end, writing.moved + limits_.stall, writing.began + limits_.deadline});
  }
  return end;
}

void Outlet::WaitAndWrite() {
  std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const Writing& writing : writings_) {
    polled.push_back({.fd = writing.peer.get(), .events = POLLOUT, .revents = 0});
  }
  const absl::Duration left = std::min(NextEnd() - MonotonicNow(), absl::Minutes(1));
  const int64_t timeout = std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1);
  (void)poll(polled.data(), polled.size(), static_cast<int>(timeout));
  if (polled[0].revents != 0) {
    uint64_t ignored = 0;
    (void)!read(wake_.get(), &ignored, sizeof(ignored));
  }
  auto one = writings_.begin();
  for (size_t i = 1; i < polled.size(); ++i) {
    const Sent sent = polled[i].revents == 0 ? Sent::kNothing : SendRest(*one);
    if (sent == Sent::kAll || sent == Sent::kFailed) {
      one = Drop(one);
      continue;
    }
    const auto next = std::next(one);
    if (sent == Sent::kSome) {
      one->moved = MonotonicNow();
      writings_.splice(writings_.end(), writings_, one);
    }
    one = next;
  }
}

void Outlet::DropSlow(absl::Time now) {
  for (auto one = writings_.begin(); one != writings_.end();) {
    const bool late = now >= one->moved + limits_.stall || now >= one->began + limits_.deadline;
    if (late) ++slow_;
    one = late ? Drop(one) : std::next(one);
  }
}

}  // namespace eplb
