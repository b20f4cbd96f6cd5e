#include "client/session/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/wait_check.h"
#include "proto/wire/endpoint.h"

namespace eplb {
namespace {

bool IsRefusal(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status) ||
         absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnauthenticated(status);
}

// The daemon leads, and another run or process is before this one: the place to wait is here.
bool IsLater(const absl::Status& status) { return absl::IsAborted(status); }

// Reached, and without a place for the rank.
bool IsFull(const absl::Status& status) { return absl::IsResourceExhausted(status); }

// A daemon that comes and goes must not fill the job's log.
constexpr int64_t kMaxTimesTold = 64;

}  // namespace

Session::Session(SessionOptions options, SharedMember& member)
    : options_(std::move(options)),
      member_(member),
      choice_(options_.endpoints, /*grace=*/{}),
      jitter_(options_.seed) {
  thread_ = std::thread([this] {
    Run();
    const absl::MutexLock lock(&mutex_);
    ended_ = true;
  });
}

Session::~Session() { Close(); }

void Session::Close() {
  {
    const absl::MutexLock lock(&mutex_);
    if (!closing_) close_by_ = Clock::now() + absl::ToChronoNanoseconds(options_.close_deadline);
    closing_ = true;
  }
  if (!thread_.joinable()) return;
  while (!EndsWithin(kBetweenWaitChecks)) (void)CheckWait();
  thread_.join();
}

bool Session::EndsWithin(absl::Duration time) const {
  const absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&ended_), time);
}

void Session::Run() {
  ConnectionOptions connection = options_.connection;
  connection.on_welcome = [this](const wire::Welcome& welcome) { OnWelcome(welcome); };
  connection.on_keep = [this] { OnKeep(); };
  connection.on_unknown = [this](const std::string& what) {
    log_.Log(absl::StrCat("eplbd at ", choice_.current(), " is of a later version: ", what,
                          "; rank ", options_.rank, " skips it"));
  };
  int32_t failures = 0;  // since the last Welcome
  while (true) {
    const bool was_closing = closing();
    connection.seed = jitter_();
    const ConnectionEnd end = RunConnection(
        connection, choice_, member_, [this] { return GiveUp(); }, figures_);
    // While closing, one connection is tried: what it could not say stays unsaid.
    if (end.said_goodbye || was_closing || GiveUp()) return;
    if (!closing()) Tell(end);
    failures = end.welcomed ? 0 : failures + 1;
    if (end.welcomed) refusals_ = 0;
    if (IsRefusal(end.status)) ++refusals_;
    Choose(end);
    Wait(DelayAfter(end, failures));
  }
}

void Session::Choose(const ConnectionEnd& end) {
  if (end.moved.has_value()) {
    choice_.GoTo(end.moved->endpoint);
  } else if (end.standby.has_value()) {
    choice_.OnStandby(*end.standby);
  } else if (IsRefusal(end.status)) {
    choice_.OnRefusal(Clock::now());
  } else if (!IsLater(end.status)) {
    (void)choice_.OnFailure(Clock::now());
  }
}

absl::Duration Session::DelayAfter(const ConnectionEnd& end, int32_t failures) {
  const double uniform = std::uniform_real_distribution<double>(0, 1)(jitter_);
  if (end.moved.has_value()) return options_.backoff.first * uniform;
  // Each daemon of the list is tried before the delay grows.
  const auto num_daemons = static_cast<int32_t>(options_.endpoints.size());
  if (end.standby.has_value()) {
    // Another one leads, or will within seconds.
    BackoffOptions soon = options_.backoff;
    soon.longest = std::min(soon.longest, end.standby->empty() ? soon.longest / 4 : soon.first);
    return BackoffDelay(soon, failures / num_daemons, uniform);
  }
  if (IsRefusal(end.status) && refusals_ % num_daemons == 0) {
    return options_.backoff.refused * (0.5 + uniform / 2);
  }
  const auto rounds = failures / num_daemons;
  return BackoffDelay(options_.backoff, rounds, uniform);
}

void Session::OnWelcome(const wire::Welcome& welcome) {
  choice_.OnAnswer(welcome.election_term > 0);
  TellBack();
  if (!options_.speaks_for_all) return;
  if (!welcome.waits.empty()) {
    told_waits_ = true;
    log_.Log(absl::StrCat("eplbd at ", choice_.current(),
                          ": this run is not balanced yet: ", welcome.waits));
  } else if (std::exchange(told_waits_, false)) {
    LogLine(absl::StrCat("eplbd at ", choice_.current(), ": this run is balanced now"));
  }
}

void Session::OnKeep() {
  if (!std::exchange(told_waits_, false)) return;
  LogLine(absl::StrCat("eplbd at ", choice_.current(), ": this run is balanced now"));
}

void Session::Tell(const ConnectionEnd& end) {
  const std::string& endpoint = choice_.current();
  if (end.moved.has_value()) {
    if (!options_.speaks_for_all) return;
    log_.Log(absl::StrCat("rank ", options_.rank, " for all ranks: eplbd at ", end.moved->endpoint,
                          " leads this run with term ", end.moved->term,
                          "; the ranks leave eplbd at ", endpoint, " for it"));
  } else if (IsRefusal(end.status)) {
    log_.Log(absl::StrCat("eplbd at ", endpoint, " refuses rank ", options_.rank, ": ",
                          end.status.message(), "; training continues unbalanced"));
    figures_.Add(&SessionStats::refusals);
  } else if (end.standby.has_value()) {
    if (end.standby->empty()) TellAway("stands by, and no daemon leads at the moment");
  } else if (IsFull(end.status) || IsLater(end.status)) {
    TellAway(absl::StrCat("has no place for this run yet: ", end.status.message()));
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
  away_ = choice_.current();
  if (++times_away_ > kMaxTimesTold) return;
  LogLine(
      absl::StrCat("rank ", options_.rank, " for all ranks: eplbd at ", away_, " ", why,
                   "; training continues with the current placement, connecting in the background",
                   times_away_ == kMaxTimesTold ? "; this is not logged again" : ""));
}

void Session::TellBack() {
  if (!away_since_.has_value()) return;
  const absl::Duration away = absl::FromChrono(Clock::now() - *away_since_);
  away_since_.reset();
  if (times_away_ > kMaxTimesTold) return;
  const std::string time = absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(100)));
  LogLine(absl::StrCat("rank ", options_.rank, " for all ranks: eplbd at ", choice_.current(),
                       choice_.current() == away_
                           ? absl::StrCat(" is back after ", time)
                           : absl::StrCat(" answers after ", time, " in the place of ", away_)));
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
