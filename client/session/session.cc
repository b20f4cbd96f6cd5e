#include "client/session/session.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

bool IsRefusal(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status) ||
         absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnauthenticated(status);
}

}  // namespace

Session::Session(SessionOptions options, SharedMember& member)
    : options_(std::move(options)), member_(member), jitter_(options_.seed) {
  thread_ = std::thread([this] { Run(); });
}

Session::~Session() { Close(); }

void Session::Close() {
  {
    const absl::MutexLock lock(&mutex_);
    if (!closing_) close_by_ = Clock::now() + absl::ToChronoNanoseconds(options_.close_deadline);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Session::Run() {
  int32_t failures = 0;  // since the last Welcome
  while (true) {
    const bool was_closing = closing();
    const ConnectionEnd end = RunConnection(
        options_.connection, member_, [this] { return GiveUp(); }, figures_);
    // While closing, one connection is tried: what it could not say stays unsaid.
    if (end.said_goodbye || was_closing || GiveUp()) return;
    if (!closing()) Tell(end);
    failures = end.welcomed ? 0 : failures + 1;
    const double uniform = std::uniform_real_distribution<double>(0, 1)(jitter_);
    Wait(IsRefusal(end.status) ? options_.backoff.longest * (0.5 + uniform / 2)
                               : BackoffDelay(options_.backoff, failures, uniform));
  }
}

void Session::Tell(const ConnectionEnd& end) {
  const std::string& endpoint = options_.connection.endpoint;
  if (IsRefusal(end.status)) {
    log_.Log(absl::StrCat("eplbd at ", endpoint, " refuses this rank: ", end.status.message(),
                          "; training goes on without it"));
    figures_.OnRefusal();
  } else if (!end.status.ok()) {
    log_.Log(absl::StrCat("eplbd at ", endpoint, " is away: ", end.status.message(),
                          "; training goes on, connecting in the background"));
  } else if (end.drained) {
    log_.Log(absl::StrCat("eplbd at ", endpoint, " drains; coming back later"));
  }
}

bool Session::GiveUp() const {
  const absl::MutexLock lock(&mutex_);
  return closing_ && Clock::now() > close_by_;
}

void Session::Wait(absl::Duration delay) {
  const absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&closing_), delay);
}

bool Session::closing() const {
  const absl::MutexLock lock(&mutex_);
  return closing_;
}

}  // namespace eplb
