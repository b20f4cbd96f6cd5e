#include "server/etcd/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include <grpc/support/time.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "proto/wire/channel_credentials.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/status.h"

#include "etcd/etcd.grpc.pb.h"

namespace eplb::etcd {
namespace {

constexpr int kMaxAnswerBytes = 64 << 20;  // a page of rows
constexpr size_t kSmallBytes = 64 << 10;   // small transaction
constexpr int kKeepaliveMs = 10'000;       // etcd refuses pings that come more often than every 5 s
constexpr int kKeepaliveTimeoutMs = 3'000;
constexpr int kRounds = 2;  // over all members
constexpr int kMostPatience = 8;
constexpr int kTripsOfATimeout = 4;  // a call over a new connection takes up to three
constexpr int kSlowPart = 4;         // part of the timeout: a longer round trip is reported
constexpr double kNewest = 0.25;     // weight of the newest call in the average
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(50);

// The member did not answer, or answered for want of the others: another one may know more.
bool IsOfMember(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsInternal(status) || absl::IsUnknown(status);
}

// The deadline of a call after this time, which a step of the wall clock does not move.
gpr_timespec DeadlineIn(absl::Duration left) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(absl::ToInt64Microseconds(left), GPR_TIMESPAN));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Make(ClientOptions options) {
  EPLB_RETURN_IF_ERROR(wire::CheckTlsFiles(options.tls));
  return std::unique_ptr<Client>(new Client(std::move(options)));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Client::ChannelTo(size_t member) {
  const std::lock_guard lock(mutex_);
  if (channels_[member] != nullptr) return channels_[member];
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                        wire::MakeChannelCredentials(options_.tls, &arguments));
  channels_[member] = grpc::CreateCustomChannel(options_.endpoints[member], credentials, arguments);
  return channels_[member];
}

void Client::GoOn(size_t failed, bool is_dead) {
  const std::lock_guard lock(mutex_);
  if (is_dead) channels_[failed] = nullptr;
  if (current_ == failed) current_ = (failed + 1) % channels_.size();
}

absl::Status Client::Once(absl::Time deadline, absl::Duration timeout, Size size,
                          const Call& call) {
  const absl::Time patient_until = MonotonicNow() + timeout;
  const absl::Time until = std::min(deadline, patient_until);
  size_t member = 0;
  {
    const std::lock_guard lock(mutex_);
    member = current_;
  }
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, ChannelTo(member));
  grpc::ClientContext context;
  // A call over a new connection takes several round trips.
  const bool is_measured = size == Size::kSmall && channel->GetState(false) == GRPC_CHANNEL_READY;
  const absl::Time begin = MonotonicNow();
  context.set_deadline(DeadlineIn(until - begin));
  int64_t cancels_before = 0;
  {
    const std::lock_guard lock(mutex_);
    calls_.insert(&context);
    cancels_before = cancels_;
  }
  const absl::Status status = call(channel, &context);
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    calls_.erase(&context);
    cancelled = cancels_ != cancels_before;
  }
  if (status.ok()) {
    if (size != Size::kEvent) NoteAnswer(MonotonicNow() - begin, is_measured);
    return absl::OkStatus();
  }
  // The caller's own deadline proves nothing about the connection.
  const bool is_dead = !absl::IsDeadlineExceeded(status) || until == patient_until;
  if (IsOfMember(status) && !cancelled) GoOn(member, is_dead);
  const std::string message(status.message());
  return {status.code(),
          absl::StrCat("etcd at ", options_.endpoints[member], ": ",
                       absl::IsUnavailable(status) ? wire::ConnectionCause(message) : message)};
}

void Client::CancelCalls() {
  const std::lock_guard lock(mutex_);
  ++cancels_;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
}

int64_t Client::cancels() const {
  const std::lock_guard lock(mutex_);
  return cancels_;
}

absl::Duration Client::timeout() const {
  const std::lock_guard lock(mutex_);
  return std::max(patience_ * options_.timeout,
                  std::min(kTripsOfATimeout * round_trip_, kMostPatience * options_.timeout));
}

absl::Duration Client::round_trip() const {
  const std::lock_guard lock(mutex_);
  return round_trip_;
}

void Client::NoteAnswer(absl::Duration took, bool is_measured) {
  const std::lock_guard lock(mutex_);
  for (patience_ = 1; patience_ < kMostPatience && took > patience_ * options_.timeout;) {
    patience_ *= 2;
  }
  if (!is_measured) return;
  const bool is_first = round_trip_ == absl::ZeroDuration();
  round_trip_ = is_first ? took : round_trip_ + kNewest * (took - round_trip_);
}

absl::Status Client::Noted(absl::Status status) {
  const std::lock_guard lock(mutex_);
  // An etcd that is slow and one that is gone look alike until an answer arrives.
  if (absl::IsDeadlineExceeded(status)) patience_ = std::min(2 * patience_, kMostPatience);
  if (!IsOfMember(status)) {
    failure_ = absl::OkStatus();
  } else {
    if (failure_.ok()) failing_since_ = absl::Now();
    failure_ = status;
  }
  return status;
}

std::string Client::Trouble() const {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) {
    if (round_trip_ <= options_.timeout / kSlowPart) return "";
    return absl::StrFormat("etcd: slow: a call takes %.2f s, and store.etcd.timeout is %s",
                           absl::ToDoubleSeconds(round_trip_),
                           absl::FormatDuration(options_.timeout));
  }
  return absl::StrCat(
      "etcd: unreachable since ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", failing_since_, absl::UTCTimeZone()), ": ",
      failure_.message());
}

absl::Status Client::Repeat(absl::Time deadline, Size size, const Call& call) {
  if (MonotonicNow() >= deadline) {
    return DeadlineExceeded("etcd was not asked: the deadline has passed");
  }
  absl::Status status;
  const int64_t cancels_before = cancels();
  const size_t attempts = kRounds * options_.endpoints.size();
  for (size_t attempt = 0; attempt < attempts && MonotonicNow() < deadline; ++attempt) {
    if (attempt > 0) absl::SleepFor(std::min(kBetweenAttempts, deadline - MonotonicNow()));
    const bool again = attempt >= options_.endpoints.size();
    status = Once(deadline, again ? 2 * timeout() : timeout(), size, call);
    if (!IsOfMember(status) || cancels() != cancels_before) break;
  }
  return Noted(std::move(status));
}

absl::StatusOr<pb::RangeResponse> Client::Range(const pb::RangeRequest& request,
                                                absl::Time deadline) {
  pb::RangeResponse response;
  const Size size = request.range_end().empty() ? Size::kSmall : Size::kLarge;
  EPLB_RETURN_IF_ERROR(
      Repeat(deadline, size, [&](const auto& channel, grpc::ClientContext* context) {
        return wire::FromGrpc(pb::KV::NewStub(channel)->Range(context, request, &response));
      }));
  return response;
}

absl::StatusOr<pb::TxnResponse> Client::Txn(const pb::TxnRequest& request, absl::Time deadline) {
  pb::TxnResponse response;
  const Size size = request.ByteSizeLong() <= kSmallBytes ? Size::kSmall : Size::kLarge;
  EPLB_RETURN_IF_ERROR(
      Noted(Once(deadline, timeout(), size, [&](const auto& channel, grpc::ClientContext* context) {
        return wire::FromGrpc(pb::KV::NewStub(channel)->Txn(context, request, &response));
      })));
  return response;
}

absl::StatusOr<pb::LeaseGrantResponse> Client::Grant(int64_t ttl_seconds, absl::Time deadline) {
  pb::LeaseGrantRequest request;
  request.set_ttl(ttl_seconds);
  pb::LeaseGrantResponse response;
  EPLB_RETURN_IF_ERROR(
      Repeat(deadline, Size::kSmall, [&](const auto& channel, grpc::ClientContext* context) {
        return wire::FromGrpc(pb::Lease::NewStub(channel)->LeaseGrant(context, request, &response));
      }));
  if (response.error().empty()) return response;
  return Unavailable("etcd grants no lease: ", response.error());
}

absl::Status Client::Revoke(int64_t lease, absl::Time deadline) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  pb::LeaseRevokeResponse response;
  const absl::Status status =
      Repeat(deadline, Size::kSmall, [&](const auto& channel, auto* context) {
        return wire::FromGrpc(
            pb::Lease::NewStub(channel)->LeaseRevoke(context, request, &response));
      });
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<int64_t> Client::KeepAlive(int64_t lease, absl::Time deadline) {
  pb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  pb::LeaseKeepAliveResponse response;
  EPLB_RETURN_IF_ERROR(
      Repeat(deadline, Size::kSmall, [&](const auto& channel, grpc::ClientContext* context) {
        const auto stub = pb::Lease::NewStub(channel);
        const auto stream = stub->LeaseKeepAlive(context);
        const bool answered = stream->Write(request) && stream->Read(&response);
        if (answered) context->TryCancel();  // one question, one answer
        const grpc::Status end = stream->Finish();
        if (answered) return absl::OkStatus();
        return end.ok() ? Unavailable("the stream ended without an answer") : wire::FromGrpc(end);
      }));
  return response.ttl();
}

absl::Status Client::WaitForDelete(const std::string& key, int64_t since, absl::Time deadline) {
  pb::WatchRequest request;
  pb::WatchCreateRequest& create = *request.mutable_create_request();
  create.set_key(key);
  create.set_start_revision(since + 1);
  create.add_filters(pb::WatchCreateRequest::NOPUT);
  absl::Status result;
  const absl::Status failure = Once(
      deadline, absl::InfiniteDuration(), Size::kEvent, [&](const auto& channel, auto* context) {
        const auto stub = pb::Watch::NewStub(channel);
        const auto stream = stub->Watch(context);
        pb::WatchResponse response;
        bool deleted = false;
        bool reading = stream->Write(request) && stream->Read(&response);
        while (reading && !response.canceled()) {
          deleted = !response.events().empty();
          if (deleted) break;
          reading = stream->Read(&response);
        }
        if (reading) context->TryCancel();
        const grpc::Status end = stream->Finish();
        if (deleted) return absl::OkStatus();
        if (response.canceled()) return Unavailable("the watch ended: ", response.cancel_reason());
        absl::Status status = wire::FromGrpc(end);
        if (status.ok()) return Unavailable("the watch ended");
        // A call without an event is no fault of the member. etcd may notice the deadline first,
        // and calls it UNKNOWN.
        const bool late = absl::IsDeadlineExceeded(status) ||
                          absl::StrContains(status.message(), "deadline exceeded");
        if (!late) return status;
        result = DeadlineExceeded(status.message());
        return absl::OkStatus();
      });
  return failure.ok() ? result : failure;
}

}  // namespace eplb::etcd
