// One call per all-gather, repeated while daemons restart or stand by.
#include "client/session/daemon_all_gather.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/session/channel.h"
#include "client/session/connection.h"
#include "proto/wire/status.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

// Extra time of the rank after the deadline at which the daemon names the missing ranks.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);        // between two attempts
constexpr absl::Duration kBetweenStandbys = absl::Milliseconds(300);  // while none leads
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// True if a daemon listens. The error of a failed call does not show it, because gRPC tries to
// connect again before it gives up a call whose connection broke.
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
      return Internal("all_gather ", key, ": ", response.blobs_size(), " answers, expected ",
                      options_.world_size);
    }
    if (next_key_ > 0 && response.token() != request_.token()) {
      return Internal("all_gather ", key,
                      ": the answer is to other ranks than those of all-gather 0");
    }
    request_.set_token(response.token());
    request_.set_previous_blob(bytes.data(), bytes.size());
    ++next_key_;
    return std::vector<std::string>(response.blobs().begin(), response.blobs().end());
  }

 private:
  // Waits until the deadline for a daemon that was reached and is lost, e.g. for a restart, because
  // its successor finds this rank by its nonce. Does not wait for a daemon that never answered.
  absl::Status CallUntilAnswered(v1::AllGatherResponse* response) {
    const absl::Time begin = absl::Now();
    // Cause of any attempt, because a later one may end before the system has one.
    std::string cause;
    absl::Duration pause = kFirstPause;
    size_t tried = 0;  // daemons that never answered, each for kListenGrace
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
      // A channel that failed connects again only while it is polled.
      channels_[choice_.position()].reset();
      if (choice_.OnFailure(EndpointChoice::Clock::now())) {
        ++tried;
        pause = kFirstPause;
      }
      const absl::Time next = absl::Now() + pause;
      const bool none_listens = options_.endpoints.size() == 1 ? next > begin + kListenGrace
                                                               : tried == options_.endpoints.size();
      if (next > begin + options_.timeout || (!reached_ && none_listens)) {
        return Unavailable(cause.empty() ? wire::ConnectionCause(words) : cause);
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
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    response->Clear();
    const grpc::Status answer = AwaitCall(context, [&] {
      if (Connects(*channel, deadline)) reached_ = true;
      return v1::Balancer::NewStub(channel)->AllGather(&context, request_, response);
    });
    return wire::FromGrpc(answer, context);
  }

  absl::Status Told(const absl::Status& status) const {
    if (!absl::IsDeadlineExceeded(status) || status.message() != "Deadline Exceeded") return status;
    return DeadlineExceeded("no answer within ", absl::FormatDuration(options_.timeout));
  }

  const DaemonAllGatherOptions options_;
  EndpointChoice choice_;
  // One per endpoint, while it answers.
  std::vector<std::shared_ptr<grpc::Channel>> channels_ =
      std::vector<std::shared_ptr<grpc::Channel>>(options_.endpoints.size());
  v1::AllGatherRequest request_;  // with the token and the blob of the last answer
  bool reached_ = false;          // a daemon has answered
  int64_t next_key_ = 0;
};

}  // namespace

DaemonAllGatherFunction MakeAllGatherThroughDaemon(DaemonAllGatherOptions options) {
  auto all_gather = std::make_shared<DaemonAllGather>(std::move(options));
  return [all_gather](std::string_view bytes) { return all_gather->Run(bytes); };
}

}  // namespace eplb
