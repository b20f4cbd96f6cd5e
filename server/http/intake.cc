// One thread that polls the listener and the connections that send their heads.
#include "server/http/intake.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
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
  // The end may be split over two reads.
  const size_t from = before < kHeadEnd.size() ? 0 : before - kHeadEnd.size();
  const size_t end = head.find(kHeadEnd, from);
  waiting.arrival.too_large = std::min(end, head.size()) > limits_.max_head_bytes;
  if (end == std::string::npos && !waiting.arrival.too_large) return true;
  Arrive(std::move(waiting.arrival));
  return false;
}

// Accepts the connections of the backlog; of a flood, the rest in the next turn.
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

}  // namespace eplb
