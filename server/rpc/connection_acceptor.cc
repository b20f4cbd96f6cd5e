// One thread that polls the listener and the connections that have sent nothing yet.
#include "server/rpc/connection_acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpcpp/server_builder.h>

#include "base/monotonic_clock.h"
#include "server/process/log.h"

namespace eplb {

namespace {

constexpr int kMaxAccepts = 1024;  // in one turn
// After an accept that failed for want of descriptors or memory.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr absl::Duration kLogPeriod = absl::Minutes(1);

// The connection under the lowest free number.
Descriptor Lowered(const Descriptor& connection) {
  return Descriptor(fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
}

}  // namespace

ConnectionAcceptor::ConnectionAcceptor(Descriptor listener, Options options)
    : listener_(std::move(listener)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      options_(std::move(options)) {}

ConnectionAcceptor::~ConnectionAcceptor() { Stop(); }

void ConnectionAcceptor::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void ConnectionAcceptor::Stop() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  waiting_.clear();
  listener_ = Descriptor();
}

void ConnectionAcceptor::Loop() {
  for (;;) {
    const absl::Time before = MonotonicNow();
    std::vector<pollfd> polled = {
        {.fd = stop_.get(), .events = POLLIN, .revents = 0},
        {.fd = before < accept_from_ ? -1 : listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Silent& one : waiting_) {
      polled.push_back({.fd = one.descriptor.get(), .events = POLLIN, .revents = 0});
    }
    // The oldest connection ends first.
    absl::Duration left = waiting_.empty() ? kLogPeriod : waiting_.front().give_up - before;
    if (polled[1].fd < 0) left = std::min(left, kAcceptPause);
    const int64_t timeout = std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1);
    (void)poll(polled.data(), polled.size(), static_cast<int>(timeout));
    if (polled[0].revents != 0) return;
    const absl::Time now = MonotonicNow();
    ServeSpeaking(polled);
    DropLate(now);
    if (polled[1].revents != 0) AcceptWaiting(now);
    LogClosed(now);
  }
}

void ConnectionAcceptor::ServeSpeaking(const std::vector<pollfd>& polled) {
  auto one = waiting_.begin();
  for (size_t i = 2; i < polled.size(); ++i) {
    if (polled[i].revents == 0) {
      ++one;
      continue;
    }
    char first = 0;
    const ssize_t got = recv(one->descriptor.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      ++one;
      continue;
    }
    if (got > 0) options_.serve(std::move(one->descriptor));
    one = waiting_.erase(one);
  }
}

void ConnectionAcceptor::DropLate(absl::Time now) {
  while (!waiting_.empty() && now >= waiting_.front().give_up) {
    ++silent_too_long_;
    waiting_.pop_front();
  }
}

Descriptor ConnectionAcceptor::Fit(Descriptor accepted) {
  const bool fits = accepted.get() < options_.descriptors_below;
  if (fits && waiting_.size() < kMaxSilent) return accepted;
  ++crowded_;
  if (waiting_.empty()) return {};
  waiting_.pop_front();
  if (fits) return accepted;
  Descriptor lowered = Lowered(accepted);
  if (lowered.get() >= options_.descriptors_below) return {};
  return lowered;
}

void ConnectionAcceptor::AcceptWaiting(absl::Time now) {
  for (int i = 0; i < kMaxAccepts; ++i) {
    Descriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.get() < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // The connection stays in the backlog, and poll would not wait.
      ++crowded_;
      accept_from_ = now + kAcceptPause;
      if (!waiting_.empty()) waiting_.pop_front();
      return;
    }
    Descriptor connection = Fit(std::move(accepted));
    if (connection.get() < 0) continue;
    waiting_.push_back({.descriptor = std::move(connection), .give_up = now + options_.silence});
  }
}

void ConnectionAcceptor::LogClosed(absl::Time now) {
  const int64_t closed = crowded_ + silent_too_long_;
  if (closed == logged_ || now < log_from_) return;
  Log(LogLevel::kWarn, "connections_closed",
      {{"address", options_.address},
       {"since_last_line", closed - logged_},
       {"crowded_in_all", crowded_.load()},
       {"silent_in_all", silent_too_long_.load()},
       {"reason", absl::StrCat("connections were more than the limit of open files has room for, "
                               "or sent nothing within ",
                               absl::FormatDuration(options_.silence))}});
  logged_ = closed;
  log_from_ = now + kLogPeriod;
}

// Sets the options that gRPC's own listener sets.
void HandToGrpc(Descriptor connection, grpc::experimental::ExternalConnectionAcceptor& door) {
  const int yes = 1;
  const unsigned int unanswered_ms = kUnansweredMs;
  (void)setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  (void)setsockopt(connection.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms,
                   sizeof(unanswered_ms));
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.Release();
  door.HandleNewConnection(&parameters);
}

}  // namespace eplb
