#include "server/http/connections.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"

namespace eplb {

namespace {

constexpr int kMaxAccepts = 128;  // in one turn
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr std::string_view kHeadEnd = "\r\n\r\n";

}  // namespace

HttpLane LaneOf(std::string_view head) {
  head = head.substr(0, head.find_first_of("\r\n"));
  const size_t space = head.find(' ');
  if (space == head.npos) return HttpLane::kQuestion;
  const std::string_view target = head.substr(space + 1);
  const std::string_view path = target.substr(0, target.find_first_of(" ?"));
  return path == "/livez" || path == "/readyz" ? HttpLane::kProbe : HttpLane::kQuestion;
}

Intake::Intake(Descriptor listener, Limits limits)
    : limits_(limits),
      listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Intake::Run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
    }
    std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = MonotonicNow() < accept_from_ ? -1 : listener_.get(),
                                   .events = POLLIN,
                                   .revents = 0}};
    for (const Waiting& one : waiting_) {
      polled.push_back({.fd = one.arrival.descriptor.get(), .events = POLLIN, .revents = 0});
    }
    // The oldest connection ends first.
    absl::Duration left =
        waiting_.empty() ? absl::Minutes(1) : waiting_.front().give_up - MonotonicNow();
    if (polled[1].fd < 0) left = std::min(left, kAcceptPause);
    const int64_t timeout = std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1);
    (void)poll(polled.data(), polled.size(), static_cast<int>(timeout));
    const absl::Time now = MonotonicNow();
    auto one = waiting_.begin();
    for (size_t i = 2; i < polled.size(); ++i) {
      const bool waits = polled[i].revents == 0 || Read(*one);
      const bool late = waits && now >= one->give_up;
      if (late) ++late_;
      one = waits && !late ? std::next(one) : waiting_.erase(one);
    }
    if (polled[1].revents != 0) Accept(now);
  }
}

bool Intake::Read(Waiting& waiting) {
  std::array<char, 4096> bytes;
  const ssize_t got =
      recv(waiting.arrival.descriptor.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  std::string& head = waiting.arrival.head;
  const size_t before = head.size();
  head.append(bytes.data(), static_cast<size_t>(got));
  // The end may lie across two reads.
  const size_t from = before < kHeadEnd.size() ? 0 : before - kHeadEnd.size();
  const size_t end = head.find(kHeadEnd, from);
  waiting.arrival.too_large = std::min(end, head.size()) > limits_.max_head_bytes;
  if (end == std::string::npos && !waiting.arrival.too_large) return true;
  Arrive(std::move(waiting.arrival));
  return false;
}

// What waits in the backlog; a flood goes on in the next turn.
void Intake::Accept(absl::Time now) {
  for (int i = 0; i < kMaxAccepts; ++i) {
    Descriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.get() < 0) {
      // Without descriptors the connection stays in the backlog, and poll would not wait.
      if (errno != EAGAIN) accept_from_ = now + kAcceptPause;
      return;
    }
    if (waiting_.size() >= limits_.max_connections) {
      ++crowded_;
      waiting_.pop_front();
    }
    waiting_.push_back({.arrival = {.descriptor = std::move(accepted), .head = {}},
                        .give_up = now + limits_.head_deadline});
  }
}

void Intake::Arrive(HttpArrival arrival) {
  Lane& lane = LaneFor(LaneOf(arrival.head));
  {
    const std::lock_guard lock(mutex_);
    if (lane.arrivals.size() >= limits_.max_connections) {
      ++crowded_;
      lane.arrivals.pop_front();
    }
    lane.arrivals.push_back(std::move(arrival));
  }
  lane.changed.notify_one();
}

std::optional<HttpArrival> Intake::Next(HttpLane which) {
  Lane& lane = LaneFor(which);
  std::unique_lock lock(mutex_);
  lane.changed.wait(lock, [this, &lane] { return stopped_ || !lane.arrivals.empty(); });
  if (stopped_) return std::nullopt;
  HttpArrival arrival = std::move(lane.arrivals.front());
  lane.arrivals.pop_front();
  return arrival;
}

void Intake::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  for (Lane& lane : lanes_) lane.changed.notify_all();
  const uint64_t one = 1;
  (void)write(wake_.get(), &one, sizeof(one));
}

namespace {

// Ends a connection whose answer is sent.
void EndAnswered(const Descriptor& peer) {
  (void)shutdown(peer.get(), SHUT_WR);
  // What the peer still sent would make the kernel throw our answer away.
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
