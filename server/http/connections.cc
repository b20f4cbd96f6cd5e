// One poll over the listener and all connections that send or receive, and the threads that make
// answers.
#include "server/http/connections.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/monotonic_clock.h"

namespace eplb {

namespace {

constexpr int kThreads = 4;       // threads that make answers
constexpr int kMaxAccepts = 128;  // in one turn
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr std::string_view kHeadEnd = "\r\n\r\n";
// Bytes that the kernel keeps for a peer that does not read; it doubles the figure. It reports a
// socket as writable once a third is free: a peer that takes 43 KB/s is seen to take something in
// each second, and a silent one holds no more of the kernel's memory.
constexpr int kSendBuffer = 64 << 10;

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

bool MayRepeat(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

Connections::Connections(Descriptor listener, Limits limits, Handler handler)
    : limits_(limits),
      handler_(std::move(handler)),
      listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  threads_.emplace_back([this] { Run(); });
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { MakeAnswers(); });
}

Connections::~Connections() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  Wake();
  for (std::thread& thread : threads_) thread.join();
}

void Connections::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Connections::MakeAnswers() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
    if (stopped_) return;
    List one;
    one.splice(one.end(), waiting_, waiting_.begin());
    lock.unlock();
    one.front().bytes = std::exchange(one.front().make, {})();
    lock.lock();
    answered_.splice(answered_.end(), one);
    Wake();
  }
}

void Connections::Run() {
  while (TakeAnswered()) {
    DropSurplus();
    Turn();
  }
}

bool Connections::TakeAnswered() {
  List answered;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    answered.swap(answered_);
  }
  const absl::Time now = MonotonicNow();
  while (!answered.empty()) BeginAnswer(answered, answered.begin(), now);
  return true;
}

void Connections::DropSurplus() {
  size_t bytes = 0;
  for (const Connection& one : answering_) bytes += one.bytes.size();
  while (answering_.size() > limits_.max_connections ||
         (bytes > limits_.max_answer_bytes && answering_.size() > 1)) {
    ++crowded_;
    bytes -= answering_.front().bytes.size();
    answering_.pop_front();
  }
}

absl::Time Connections::NextEnd() const {
  absl::Time end = MonotonicNow() + absl::Minutes(1);
  if (!asking_.empty()) end = std::min(end, asking_.front().began + limits_.head_deadline);
  for (const Connection& one : answering_) {
    end = std::min({end, one.moved + limits_.stall, one.began + limits_.answer_deadline});
  }
  return accept_from_ > MonotonicNow() ? std::min(end, accept_from_) : end;
}

// Waits until a peer, an answer or a deadline needs work, and does it.
void Connections::Turn() {
  const bool accepts = MonotonicNow() >= accept_from_;
  std::vector<pollfd> polled = {
      {.fd = wake_.get(), .events = POLLIN, .revents = 0},
      {.fd = accepts ? listener_.get() : -1, .events = POLLIN, .revents = 0}};
  for (const Connection& one : asking_) {
    polled.push_back({.fd = one.peer.get(), .events = POLLIN, .revents = 0});
  }
  for (const Connection& one : answering_) {
    polled.push_back({.fd = one.peer.get(), .events = POLLOUT, .revents = 0});
  }
  const int64_t left = absl::ToInt64Milliseconds(NextEnd() - MonotonicNow()) + 1;
  (void)poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  uint64_t ignored = 0;
  (void)!read(wake_.get(), &ignored, sizeof(ignored));
  const absl::Time now = MonotonicNow();
  auto state = polled.begin() + 2;
  const auto first_answer = state + std::ssize(asking_);
  for (auto one = asking_.begin(); state != first_answer; ++state) {
    const auto next = std::next(one);
    if (now >= one->began + limits_.head_deadline) {
      ++late_;
      asking_.erase(one);
    } else if (state->revents != 0) {
      Read(one, now);
    }
    one = next;
  }
  // Answers that began in this turn follow the polled ones.
  for (auto one = answering_.begin(); state != polled.end(); ++state) {
    const auto next = std::next(one);
    const bool stalls = state->revents == 0 && now >= one->moved + limits_.stall;
    if (stalls || now >= one->began + limits_.answer_deadline) {
      ++slow_;
      answering_.erase(one);
    } else if (state->revents != 0) {
      Write(one, now);
    }
    one = next;
  }
  if (polled[1].revents != 0) Accept(now);
}

// Accepts the connections of the backlog; of a flood, the rest in the next turn.
void Connections::Accept(absl::Time now) {
  for (int i = 0; i < kMaxAccepts; ++i) {
    Descriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.get() < 0) {
      // Without descriptors the connection stays in the backlog, and poll would not wait.
      if (errno != EAGAIN) accept_from_ = now + kAcceptPause;
      return;
    }
    if (asking_.size() >= limits_.max_connections) {
      ++crowded_;
      asking_.pop_front();
    }
    asking_.push_back({.peer = std::move(accepted), .began = now});
  }
}

void Connections::Read(List::iterator one, absl::Time now) {
  std::array<char, 4096> bytes;
  const ssize_t got = recv(one->peer.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got <= 0) {
    if (got == 0 || !MayRepeat(errno)) asking_.erase(one);
    return;
  }
  // The end may be split over two reads.
  const size_t from = one->bytes.size() - std::min(one->bytes.size(), kHeadEnd.size());
  one->bytes.append(bytes.data(), static_cast<size_t>(got));
  const size_t end = one->bytes.find(kHeadEnd, from);
  const bool too_large = std::min(end, one->bytes.size()) > limits_.max_head_bytes;
  if (end == std::string::npos && !too_large) return;
  Answer answer = handler_(one->bytes, too_large);
  one->bytes = std::move(answer.bytes);
  one->make = std::move(answer.make);
  if (!one->make) return BeginAnswer(asking_, one, now);
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= limits_.max_connections) {
    ++crowded_;
    waiting_.pop_front();
  }
  waiting_.splice(waiting_.end(), asking_, one);
  changed_.notify_one();
}

void Connections::BeginAnswer(List& list, List::iterator one, absl::Time now) {
  (void)setsockopt(one->peer.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
  one->began = now;
  one->moved = now;
  answering_.splice(answering_.end(), list, one);
  Write(one, now);
}

// Sends what the socket takes. One call, so that no peer holds the others up however fast it reads.
void Connections::Write(List::iterator one, absl::Time now) {
  const ssize_t sent = send(one->peer.get(), one->bytes.data() + one->sent,
                            one->bytes.size() - one->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (!MayRepeat(errno)) answering_.erase(one);
    return;
  }
  one->sent += static_cast<size_t>(sent);
  one->moved = now;
  if (one->sent < one->bytes.size()) {
    answering_.splice(answering_.end(), answering_, one);
    return;
  }
  EndAnswered(one->peer);
  answering_.erase(one);
}

}  // namespace eplb
