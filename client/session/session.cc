#include "client/session/session.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "proto/wire/endpoint.h"

namespace eplb {
namespace {

bool IsRefusal(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status) ||
         absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnauthenticated(status);
}

// A daemon that comes and goes must not fill the job's log.
constexpr int64_t kMaxTimesTold = 64;

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
  ConnectionOptions connection = options_.connection;
  connection.on_welcome = [this] { TellBack(); };
  int32_t failures = 0;  // since the last Welcome
  while (true) {
    const bool was_closing = closing();
    const ConnectionEnd end = RunConnection(
        connection, member_, [this] { return GiveUp(); }, figures_);
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
    log_.Log(absl::StrCat("eplbd at ", endpoint, " refuses rank ", options_.rank, ": ",
                          end.status.message(), "; training goes on without it"));
    figures_.OnRefusal();
  } else if (!end.status.ok()) {
    TellAway(absl::StrCat("is away: ", wire::ConnectionCause({end.status.message().data(),
                                                              end.status.message().size()})));
  } else if (end.drained) {
    TellAway("drains");
  }
}

void Session::TellAway(const std::string& why) {
  if (away_since_.has_value() || !options_.speaks_for_all) return;
  away_since_ = Clock::now();
  if (++times_away_ > kMaxTimesTold) return;
  LogLine(absl::StrCat(
      "rank ", options_.rank, " for all ranks: eplbd at ", options_.connection.endpoint, " ", why,
      "; training goes on with the placement in force, connecting in the background",
      times_away_ == kMaxTimesTold ? "; nothing more is said of this" : ""));
}

void Session::TellBack() {
  if (!away_since_.has_value()) return;
  const absl::Duration away = absl::FromChrono(Clock::now() - *away_since_);
  away_since_.reset();
  if (times_away_ > kMaxTimesTold) return;
  LogLine(absl::StrCat("rank ", options_.rank, " for all ranks: eplbd at ",
                       options_.connection.endpoint, " is back after ",
                       absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(100)))));
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
