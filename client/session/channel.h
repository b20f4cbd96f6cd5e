// Channels to the daemon. Included by the .cc files that speak gRPC, and by no header.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/async_unary_call.h>

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/tls_files.h"
#include "base/wait_check.h"
#include "proto/wire/channel_credentials.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/messages.h"
#include "proto/wire/status.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

// A channel that shares no connection and no back-off with others: every attempt is a real one.
// Keepalive finds a dead path in at most 20 s, in 10 s if reports are under way. A daemon that is
// frozen for less than 10 s keeps its connections, and so loses no report.
// errors: InvalidArgument naming the file of `tls` at fault.
inline absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& endpoint,
                                                                  const wire::TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Daemons up to 0.1.0 end connections that ping more often than every 10 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // Otherwise gRPC stops after two pings on an idle path.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // gRPC uses this setting as the time limit of a connection and its handshake.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the daemon is inside the cluster
  // Answer of an all-gather, with the blobs of all ranks; the daemon's messages are far smaller.
  constexpr int kMaxAnswerBytes = 64 << 20;
  static_assert(kMaxAnswerBytes > wire::kMaxMessageBytes);
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                        wire::MakeChannelCredentials(tls, &arguments));
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

// A daemon that is started beside the job, or anew, listens within this time.
inline constexpr absl::Duration kListenGrace = absl::Seconds(1);

// Runs a blocking call, () -> grpc::Status, on a thread of its own while this one makes its wait
// checks; one that fails cancels the call.
template <class Call>
grpc::Status AwaitCall(grpc::ClientContext& context, const Call& call) {
  std::future<grpc::Status> answer = std::async(std::launch::async, call);
  while (answer.wait_for(absl::ToChronoMilliseconds(kBetweenWaitChecks)) !=
         std::future_status::ready) {
    if (!CheckWait().ok()) context.TryCancel();
  }
  return answer.get();
}

// Calls `call(channel, grpc::ClientContext*)` with a deadline. A connection that is refused is
// tried again for `grace`, then told by its cause rather than waited for until the deadline.
// errors: Unavailable, DeadlineExceeded, and those of the call and of MakeChannel; a standby's
// carries wire::LeaderIn.
template <class Call>
absl::Status CallDaemon(const std::string& endpoint, const wire::TlsFiles& tls,
                        absl::Duration timeout, const Call& call,
                        absl::Duration grace = kListenGrace) {
  constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(100);
  const absl::Time begin = absl::Now();
  const absl::Time listens_by = begin + std::min(grace, timeout);
  absl::Status status;
  std::string cause;  // cause of any attempt: a later one may end before the system has one
  while (true) {
    // A channel that failed connects again only while a caller polls it.
    EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(endpoint, tls));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(begin + timeout));
    const grpc::Status answer = AwaitCall(context, [&] { return call(channel, &context); });
    status = wire::FromGrpc(answer, context);
    if (wire::LeaderIn(status)) return status;  // a standby, and waiting for it gives no more
    if (cause.empty()) {
      cause = wire::SystemCause({status.message().data(), status.message().size()});
    }
    if (!absl::IsUnavailable(status) || absl::Now() + kBetweenAttempts > listens_by) break;
    absl::SleepFor(kBetweenAttempts);
  }
  const std::string message(status.message());
  if (absl::IsUnavailable(status)) {
    return Unavailable(cause.empty() ? wire::ConnectionCause(message) : cause);
  }
  if (absl::IsDeadlineExceeded(status) && message == "Deadline Exceeded") {
    return DeadlineExceeded("no answer within ", absl::FormatDuration(timeout));
  }
  return status;
}

// Finds out whether another daemon leads this rank's run. Neither of two daemons balances ranks
// that are divided between them, so a rank asks the others of its list from time to time. Only the
// .cc file that runs the stream includes it.

// One question at a time, to one daemon after the other. Threads: one caller.
class LeaderWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kDeadline{2};  // deadline of a question

  // another: a daemon of the list. position, own: places in it of that one and of the rank's own.
  // Of two terms the higher one leads; of equal ones, the daemon that stands first in the list: the
  // ranks' lists are equal, so all come to the same end.
  static bool Leads(const v1::GetLeaderResponse& another, size_t position, int64_t own_term,
                    size_t own);

  // If daemons are elected, the newest election counts, even without connected ranks, because all
  // ranks may hang at a frozen daemon.
  static bool WasElectedLater(const v1::GetLeaderResponse& another, int64_t own_election_term);

  // endpoints: the whole list; own: the place of the rank's daemon in it. every: between questions.
  LeaderWatch(const std::vector<std::string>& endpoints, size_t own, wire::TlsFiles tls,
              absl::Duration every, uint64_t seed);

  // The rank was welcomed so: the first question is due after up to `every`.
  void Begin(const wire::Hello& hello, const wire::Welcome& welcome);
  bool Due(Clock::time_point now) const;
  // True: `tag` comes out of the queue once. False: there is no question, as a file of TLS is
  // wrong.
  bool Ask(grpc::CompletionQueue* queue, void* tag);
  // It came out. The daemon to go to, if it leads.
  std::optional<wire::Moved> OnAnswer();
  // Ends an open question soon.
  void Cancel();

 private:
  struct Daemon {
    std::string endpoint;
    size_t position = 0;
    std::shared_ptr<grpc::Channel> channel = nullptr;  // from its first question on
  };
  void PlanNext();

  std::vector<Daemon> others_;
  const size_t own_;
  const wire::TlsFiles tls_;
  const absl::Duration every_;
  std::mt19937_64 jitter_;
  v1::GetLeaderRequest request_;
  int64_t term_ = 0;
  int64_t election_term_ = 0;
  Clock::time_point due_ = Clock::time_point::max();
  size_t next_ = 0;  // in others_
  // State of the open question.
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<v1::Balancer::Stub> stub_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::GetLeaderResponse>> call_;
  v1::GetLeaderResponse response_;
  grpc::Status status_;
};

}  // namespace eplb
