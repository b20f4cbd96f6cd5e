#include "server/etcd/election.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "server/store/key_values.h"

namespace eplb::etcd {
namespace {

constexpr int kRenewals = 5;  // within a lease
constexpr double kWritePart =
    2.0 / 3;  // part of a lease without a renewal in which writes are still made
constexpr absl::Duration kUsualTry = absl::Seconds(5);
constexpr absl::Duration kLongestTry = absl::Seconds(12);  // signals wait for its end
constexpr absl::Duration kLongestKnock = absl::Seconds(4);
constexpr int kTimeoutsOfATry = 3;
constexpr absl::Duration kBetweenCancels = absl::Milliseconds(50);
constexpr absl::Duration kAfterFailure = absl::Milliseconds(200);
constexpr int kTripsOfALease = 10;  // a renewal takes two, and three more over a new connection
constexpr int kCalmRenewals = 10;   // two leases
constexpr int kTripsOfATry = 8;
constexpr absl::Duration kLongestLease = absl::Seconds(60);
constexpr absl::Duration kGoodbye = absl::Seconds(2);  // without an answer the lease ends by itself

absl::Status Lost(const std::string& why) { return FailedPrecondition(why); }

pb::RangeRequest Read(const std::string& key) {
  pb::RangeRequest request;
  request.set_key(key);
  return request;
}

}  // namespace

Election::Election(Client* client, ElectionOptions options)
    : client_(client),
      options_(std::move(options)),
      knocks_(absl::StrCat(options_.prefix, "/knock/")),
      fence_{.key = absl::StrCat(options_.prefix, "/leader")},
      lease_time_(options_.lease) {}

Election::~Election() { Stop(); }

void Election::Stop() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
    // Again and again, because the thread may be between two calls.
    while (!stop_.wait_for(lock, absl::ToChronoMilliseconds(kBetweenCancels),
                           [this] { return stopped_; })) {
      client_->CancelCalls();
    }
  }
  thread_.join();
}

absl::StatusOr<bool> Election::TryToLead(const std::string& advertise) {
  absl::StatusOr<bool> leads = Try(advertise);
  const std::lock_guard lock(mutex_);
  failure_ = leads.status();
  return leads;
}

absl::StatusOr<bool> Election::Try(const std::string& advertise) {
  const absl::Duration most = std::max(
      {kUsualTry, kTripsOfATry * client_->round_trip(), kTimeoutsOfATry * client_->timeout()});
  const absl::Time deadline = MonotonicNow() + std::min(most, kLongestTry);
  EPLB_ASSIGN_OR_RETURN(const pb::RangeResponse found, client_->Range(Read(fence_.key), deadline));
  seen_revision_ = found.header().revision();
  if (!found.kvs().empty()) {
    const std::lock_guard lock(mutex_);
    leader_ = {.address = found.kvs(0).value(), .term = found.kvs(0).create_revision()};
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    leader_ = {};
  }
  const absl::Time granted = MonotonicNow();
  const absl::Duration time = WantedLease();
  EPLB_ASSIGN_OR_RETURN(const pb::LeaseGrantResponse lease,
                        client_->Grant(absl::ToInt64Seconds(time), deadline));
  // After `time` the lease has ended, and etcd refuses a key that names it.
  absl::StatusOr<bool> leads =
      CreateKey(advertise, lease.id(), time, granted, std::min(deadline, granted + time));
  // Without an answer the key may be there: it must not outlive this attempt.
  if (!leads.ok() || !*leads) (void)client_->Revoke(lease.id(), deadline);
  return leads;
}

absl::StatusOr<bool> Election::CreateKey(const std::string& advertise, int64_t lease,
                                         absl::Duration time, absl::Time granted,
                                         absl::Time deadline) {
  pb::TxnRequest request;
  pb::Compare& absent = *request.add_compare();
  absent.set_target(pb::Compare::CREATE);
  absent.set_key(fence_.key);
  absent.set_create_revision(0);
  pb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(fence_.key);
  put.set_value(advertise);
  put.set_lease(lease);
  EPLB_ASSIGN_OR_RETURN(const pb::TxnResponse response, client_->Txn(request, deadline));
  if (!response.succeeded()) return false;
  Take(lease, time);
  fence_.create_revision = response.header().revision();
  const std::lock_guard lock(mutex_);
  renewed_ = granted;
  leader_ = {.address = advertise, .term = fence_.create_revision};
  return true;
}

absl::Status Election::AwaitVacancy(absl::Duration most) {
  const absl::Status waited =
      client_->WaitForDelete(fence_.key, seen_revision_, MonotonicNow() + most);
  return absl::IsDeadlineExceeded(waited) ? absl::OkStatus() : waited;
}

void Election::Knock(const std::string& advertise) {
  const absl::Time deadline = MonotonicNow() + std::min(client_->timeout(), kLongestKnock);
  const absl::StatusOr<pb::LeaseGrantResponse> lease = client_->Grant(kKnockSeconds, deadline);
  if (!lease.ok()) return;  // the next turn tells of etcd
  pb::TxnRequest request;
  pb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(knocks_ + advertise);
  put.set_lease(lease->id());
  (void)client_->Txn(request, deadline);
}

bool Election::Knocked() {
  pb::RangeRequest request;
  request.set_key(knocks_);
  request.set_range_end(EndOfPrefix(knocks_));
  request.set_limit(1);
  const auto found =
      client_->Range(request, std::min(MonotonicNow() + client_->timeout(), write_until()));
  return found.ok() && !found->kvs().empty();
}

void Election::Yield() {
  Revoke();
  const absl::Time deadline = MonotonicNow() + std::min(lease_time(), kUsualTry);
  while (MonotonicNow() < deadline) {
    const auto found = client_->Range(Read(fence_.key), deadline);
    if (found.ok() && !found->kvs().empty()) return;
    std::unique_lock lock(mutex_);
    if (stop_.wait_for(lock, absl::ToChronoMilliseconds(kAfterFailure),
                       [this] { return stopping_; })) {
      return;
    }
  }
}

void Election::Revoke() {
  const absl::Time deadline = MonotonicNow() + kGoodbye;
  // The next one first: without its lease the move cannot happen any more.
  if (next_lease_ != 0) (void)client_->Revoke(next_lease_, deadline);
  (void)client_->Revoke(lease_, deadline);
}

void Election::Hold(std::function<void(const std::string& why)> lost,
                    std::function<bool()> serves_nobody) {
  thread_ = std::thread([this, lost = std::move(lost), serves_nobody = std::move(serves_nobody)] {
    Loop(lost, serves_nobody);
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    stop_.notify_all();
  });
}

void Election::Loop(const std::function<void(const std::string&)>& lost,
                    const std::function<bool()>& serves_nobody) {
  absl::Duration pause = lease_time() / kRenewals;
  absl::Time reached = MonotonicNow();  // by ranks, or not missed by them
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (stop_.wait_for(lock, absl::ToChronoMilliseconds(pause), [this] { return stopping_; })) {
        return;
      }
    }
    const absl::Time asked = MonotonicNow();
    const absl::Status renewed = Renew();
    if (renewed.ok()) FitLease();
    const absl::Duration took = MonotonicNow() - asked;
    pause = renewed.ok() ? std::max(lease_time() / kRenewals - took, absl::ZeroDuration())
                         : kAfterFailure;
    absl::Time last;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      failure_ = renewed;
      last = renewed_;
    }
    if (absl::IsFailedPrecondition(renewed)) return lost(std::string(renewed.message()));
    if (MonotonicNow() >= last + lease_time()) {
      return lost(absl::StrCat("the lease could not be renewed for ",
                               absl::FormatDuration(lease_time()), ": ",
                               std::string(renewed.message())));
    }
    if (!renewed.ok() || !serves_nobody() || !Knocked()) reached = MonotonicNow();
    if (MonotonicNow() < reached + kUnreached) continue;
    Yield();
    return lost("ranks reach the daemons that stand by, and not this one");
  }
}

absl::Status Election::Renew() {
  const absl::Time asked = MonotonicNow();
  absl::Time deadline;
  {
    const std::lock_guard lock(mutex_);
    deadline = renewed_ + std::min(lease_time_, next_time_);
    if (asked >= deadline) {
      return failure_.ok() ? DeadlineExceeded("the daemon did not run meanwhile") : failure_;
    }
  }
  EPLB_ASSIGN_OR_RETURN(const int64_t ttl, client_->KeepAlive(lease_, deadline));
  if (ttl <= 0) return Lost("etcd has ended the lease");
  EPLB_ASSIGN_OR_RETURN(const pb::RangeResponse found, client_->Range(Read(fence_.key), deadline));
  if (found.kvs().empty()) return Lost("the leader's key is gone");
  if (found.kvs(0).create_revision() != fence_.create_revision) {
    return Lost(absl::StrCat("the daemon at ", found.kvs(0).value(), " leads"));
  }
  // A move to another lease was not answered and has happened: that lease is renewed next.
  if (const int64_t holder = found.kvs(0).lease(); holder != lease_) {
    Take(holder, holder == next_lease_ ? next_time_ : lease_time_);
    return Unavailable("the leader's key has moved to its next lease");
  }
  {
    const std::lock_guard lock(mutex_);
    renewed_ = asked;
  }
  if (next_lease_ == 0) return absl::OkStatus();
  // The move was not answered and has not happened. Without its lease it never will.
  EPLB_RETURN_IF_ERROR(client_->Revoke(next_lease_, deadline));
  Take(lease_, lease_time_);
  return absl::OkStatus();
}

void Election::Take(int64_t lease, absl::Duration time) {
  lease_ = lease;
  next_lease_ = 0;
  absl::Duration before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(lease_time_, time);
    next_time_ = absl::InfiniteDuration();
  }
  if (time != before) options_.lease_changed(time);
}

absl::Duration Election::WantedLease() const {
  const absl::Duration needed =
      absl::Ceil(kTripsOfALease * client_->round_trip(), absl::Seconds(1));
  return std::max(options_.lease, std::min(needed, kLongestLease));
}

absl::Duration Election::lease_time() const {
  const std::lock_guard lock(mutex_);
  return std::min(lease_time_, next_time_);
}

void Election::FitLease() {
  const absl::Duration time = lease_time();
  const absl::Duration wanted = WantedLease();
  const bool is_calm = wanted < time && kTripsOfALease * client_->round_trip() <= time / 2;
  calm_renewals_ = is_calm ? calm_renewals_ + 1 : 0;
  if (wanted > time || calm_renewals_ == kCalmRenewals) MoveTo(wanted);
}

void Election::MoveTo(absl::Duration time) {
  calm_renewals_ = 0;
  const absl::Time granted = MonotonicNow();
  // The next renewal needs the rest.
  const absl::Time deadline = granted + std::min(time, lease_time()) / 2;
  const absl::StatusOr<pb::LeaseGrantResponse> lease =
      client_->Grant(absl::ToInt64Seconds(time), deadline);
  if (!lease.ok()) return;
  pb::TxnRequest request;
  pb::Compare& leads = *request.add_compare();
  leads.set_target(pb::Compare::CREATE);
  leads.set_key(fence_.key);
  leads.set_create_revision(fence_.create_revision);
  pb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(fence_.key);
  put.set_value(leader().address);
  put.set_lease(lease->id());
  next_lease_ = lease->id();
  {
    const std::lock_guard lock(mutex_);
    next_time_ = time;
  }
  const absl::StatusOr<pb::TxnResponse> moved = client_->Txn(request, deadline);
  // Without an answer the next renewal sees which lease holds the key.
  if (!moved.ok() || !moved->succeeded()) return;
  {
    const std::lock_guard lock(mutex_);
    renewed_ = granted;
  }
  Take(next_lease_, time);  // the lease before ends by itself
}

void Election::Resign() {
  Stop();
  Revoke();
}

Leader Election::leader() const {
  const std::lock_guard lock(mutex_);
  return leader_;
}

absl::Time Election::write_until() const {
  const std::lock_guard lock(mutex_);
  return renewed_ + kWritePart * std::min(lease_time_, next_time_);
}

absl::Status Election::MayWrite() const {
  const absl::Time until = write_until();
  if (MonotonicNow() < until) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  return Unavailable(
      "the lease of the lead was not renewed before its end: ",
      failure_.ok() ? "the daemon did not run meanwhile" : std::string(failure_.message()));
}

}  // namespace eplb::etcd
