#include "client/session/unary_calls.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/session/channel.h"
#include "client/session/connection.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

namespace {

constexpr uint64_t kMaxVersion = uint64_t{1} << 62;  // room to add

absl::StatusOr<int64_t> CheckedVersion(const char* field, uint64_t version) {
  if (version <= kMaxVersion) return static_cast<int64_t>(version);
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", version, ", expected at most ", kMaxVersion));
}

absl::StatusOr<StoredPlacement> FetchFrom(const std::string& endpoint, const wire::TlsFiles& tls,
                                          const std::string& job, absl::Duration timeout) {
  v1::GetPlacementRequest request;
  request.set_job(job);
  v1::GetPlacementResponse response;
  EPLB_RETURN_IF_ERROR(CallDaemon(endpoint, tls, timeout, [&](const auto& channel, auto* context) {
    return v1::Query::NewStub(channel)->GetPlacement(context, request, &response);
  }));
  EPLB_ASSIGN_OR_RETURN(wire::PlacementBody body, wire::FromProto(response.placement()));
  EPLB_ASSIGN_OR_RETURN(const int64_t given,
                        CheckedVersion("next_version", response.next_version()));
  const int64_t next_version = std::max(given, body.version + 1);
  return StoredPlacement{
      .body = std::move(body), .next_version = next_version, .endpoint = endpoint};
}

absl::StatusOr<int64_t> ReserveAt(const std::string& endpoint, const wire::TlsFiles& tls,
                                  const std::string& job, absl::Duration timeout) {
  v1::ReserveVersionRequest request;
  request.set_job(job);
  v1::ReserveVersionResponse response;
  EPLB_RETURN_IF_ERROR(CallDaemon(endpoint, tls, timeout, [&](const auto& channel, auto* context) {
    return v1::Balancer::NewStub(channel)->ReserveVersion(context, request, &response);
  }));
  return CheckedVersion("version", response.version());
}

// The best answer of all daemons, by `better`; without one NotFound, which is an answer too, then a
// standby's refusal, before other errors.
template <class Answer, class Ask, class Better>
absl::StatusOr<Answer> AskEach(const std::vector<std::string>& endpoints, const Ask& ask,
                               const Better& better) {
  absl::StatusOr<Answer> best = absl::InvalidArgumentError("there is no endpoint of a daemon");
  bool first = true;
  for (const std::string& endpoint : endpoints) {
    absl::StatusOr<Answer> answer = ask(endpoint);
    const bool known = best.ok() || absl::IsNotFound(best.status());
    const bool takes =
        first || (answer.ok() ? !best.ok() || better(*answer, *best)
                              : !known && (absl::IsNotFound(answer.status()) ||
                                           wire::LeaderIn(answer.status()).has_value()));
    if (takes) best = std::move(answer);
    first = false;
  }
  return best;
}

// As AskEach, each daemon for `timeout`. While those that answer stand by, one of them is about to
// lead: they are asked again for twice that time, and one that does not answer holds up no round.
template <class Answer, class Ask, class Better>
absl::StatusOr<Answer> AskAll(const std::vector<std::string>& endpoints, absl::Duration timeout,
                              const Ask& ask, const Better& better) {
  constexpr absl::Duration kBetweenRounds = absl::Milliseconds(200);
  constexpr absl::Duration kBesideStandbys = absl::Seconds(1);
  const absl::Time deadline = MonotonicNow() + 2 * timeout;
  bool elects = false;  // these daemons elect the one that leads
  const auto one = [&](const std::string& endpoint) {
    absl::StatusOr<Answer> answer =
        ask(endpoint, elects ? std::min(timeout, kBesideStandbys) : timeout);
    elects = elects || wire::LeaderIn(answer.status()).has_value();
    return answer;
  };
  while (true) {
    absl::StatusOr<Answer> best = AskEach<Answer>(endpoints, one, better);
    if (!wire::LeaderIn(best.status()) || MonotonicNow() + kBetweenRounds > deadline) return best;
    absl::SleepFor(kBetweenRounds);
  }
}

}  // namespace

absl::StatusOr<StoredPlacement> FetchPlacement(const std::vector<std::string>& endpoints,
                                               const wire::TlsFiles& tls, const std::string& job,
                                               absl::Duration timeout) {
  return AskAll<StoredPlacement>(
      endpoints, timeout,
      [&](const std::string& endpoint, absl::Duration limit) {
        return FetchFrom(endpoint, tls, job, limit);
      },
      [](const StoredPlacement& a, const StoredPlacement& b) {
        return a.next_version > b.next_version;
      });
}

absl::StatusOr<int64_t> ReserveVersion(const std::vector<std::string>& endpoints,
                                       const wire::TlsFiles& tls, const std::string& job,
                                       absl::Duration timeout) {
  return AskAll<int64_t>(
      endpoints, timeout,
      [&](const std::string& endpoint, absl::Duration limit) {
        return ReserveAt(endpoint, tls, job, limit);
      },
      [](int64_t a, int64_t b) { return a > b; });
}

namespace {

// The daemon answers at the deadline it sees, naming who did not come; this much later the rank
// stops waiting for that answer.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);        // between two attempts
constexpr absl::Duration kBetweenStandbys = absl::Milliseconds(300);  // while none leads
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// Whether a daemon is there. gRPC's words for a call that failed do not tell: it tries to connect
// anew before it gives up a call whose connection broke.
bool Connects(grpc::Channel& channel, absl::Time deadline) {
  grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return false;
    if (!channel.WaitForStateChange(state, absl::ToChronoTime(deadline))) return false;
    state = channel.GetState(/*try_to_connect=*/true);
  }
  return true;
}

class DaemonAllGather {
 public:
  explicit DaemonAllGather(DaemonAllGatherOptions options)
      : options_(std::move(options)),
        choice_(options_.endpoints, absl::ToChronoNanoseconds(kListenGrace)) {
    request_.set_job(options_.job);
    request_.set_launch_id(options_.launch_id);
    request_.set_rank(static_cast<uint32_t>(options_.rank));
    request_.set_world_size(static_cast<uint32_t>(options_.world_size));
    std::random_device device;
    request_.set_nonce(uint64_t{device()} << 32 | device());
  }

  absl::StatusOr<std::vector<std::string>> Run(std::string_view bytes) {
    const std::string key = absl::StrCat(next_key_);
    request_.set_key(key);
    request_.set_blob(bytes.data(), bytes.size());
    v1::AllGatherResponse response;
    const absl::Status status = CallUntilAnswered(&response);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("all_gather ", key, " through eplbd at ",
                                                      choice_.current(), ": ", status.message()));
    }
    if (response.blobs_size() != options_.world_size) {
      return absl::InternalError(absl::StrCat("all_gather ", key, ": ", response.blobs_size(),
                                              " answers, expected ", options_.world_size));
    }
    if (next_key_ > 0 && response.token() != request_.token()) {
      return absl::InternalError(absl::StrCat(
          "all_gather ", key, ": the answer is to other ranks than those of all-gather 0"));
    }
    request_.set_token(response.token());
    request_.set_previous_blob(bytes.data(), bytes.size());
    ++next_key_;
    return std::vector<std::string>(response.blobs().begin(), response.blobs().end());
  }

 private:
  // A daemon that was reached and goes away, e.g. to restart, is waited for until the deadline: the
  // one that follows knows this rank by its nonce. One that nobody has seen yet is not.
  absl::Status CallUntilAnswered(v1::AllGatherResponse* response) {
    const absl::Time begin = absl::Now();
    std::string cause;  // that of any attempt: a later one may end before the system has said why
    absl::Duration pause = kFirstPause;
    size_t tried = 0;  // daemons that nobody has seen, each for kListenGrace
    while (true) {
      absl::Status status = Call(begin, response);
      if (!absl::IsUnavailable(status)) {
        choice_.OnAnswer();
        return Told(status);
      }
      const std::string_view words(status.message().data(), status.message().size());
      if (const std::optional<std::string> leader = wire::LeaderIn(status)) {
        if (absl::Now() + kFirstPause > begin + options_.timeout) return status;
        choice_.OnStandby(*leader);
        absl::SleepFor(leader->empty() ? kBetweenStandbys : kFirstPause);
        continue;
      }
      if (cause.empty()) cause = wire::SystemCause(words);
      // A channel that failed connects again only while somebody polls it.
      channels_[choice_.position()].reset();
      if (choice_.OnFailure(EndpointChoice::Clock::now())) {
        ++tried;
        pause = kFirstPause;
      }
      const absl::Time next = absl::Now() + pause;
      const bool nobody_there = options_.endpoints.size() == 1 ? next > begin + kListenGrace
                                                               : tried == options_.endpoints.size();
      if (next > begin + options_.timeout || (!reached_ && nobody_there)) {
        return absl::UnavailableError(cause.empty() ? wire::ConnectionCause(words) : cause);
      }
      absl::SleepFor(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  absl::Status Call(absl::Time begin, v1::AllGatherResponse* response) {
    std::shared_ptr<grpc::Channel>& channel = channels_[choice_.position()];
    if (channel == nullptr) {
      EPLB_ASSIGN_OR_RETURN(channel, MakeChannel(choice_.current(), options_.tls));
    }
    const absl::Time deadline = begin + options_.timeout + kAnswerGrace;
    if (Connects(*channel, deadline)) reached_ = true;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    response->Clear();
    const grpc::Status answer =
        v1::Balancer::NewStub(channel)->AllGather(&context, request_, response);
    return wire::FromGrpc(answer, context);
  }

  absl::Status Told(const absl::Status& status) const {
    if (!absl::IsDeadlineExceeded(status) || status.message() != "Deadline Exceeded") return status;
    return absl::DeadlineExceededError(
        absl::StrCat("no answer within ", absl::FormatDuration(options_.timeout)));
  }

  const DaemonAllGatherOptions options_;
  EndpointChoice choice_;
  // By endpoint, while it answers.
  std::vector<std::shared_ptr<grpc::Channel>> channels_ =
      std::vector<std::shared_ptr<grpc::Channel>>(options_.endpoints.size());
  v1::AllGatherRequest request_;  // with the token and the blob of the last answer
  bool reached_ = false;          // a daemon was
  int64_t next_key_ = 0;
};

}  // namespace

DaemonAllGatherFunction MakeAllGatherThroughDaemon(DaemonAllGatherOptions options) {
  auto all_gather = std::make_shared<DaemonAllGather>(std::move(options));
  return [all_gather](std::string_view bytes) { return all_gather->Run(bytes); };
}

}  // namespace eplb
