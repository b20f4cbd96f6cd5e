// Whether another daemon leads this rank's launch: ranks at two daemons are balanced by neither, so
// a rank asks the others of its list from time to time. Included by the .cc file that runs the
// stream, and by no header.
#ifndef EPLB_CLIENT_SESSION_LEADER_WATCH_H_
#define EPLB_CLIENT_SESSION_LEADER_WATCH_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_unary_call.h>

#include "proto/wire/messages.h"
#include "proto/wire/tls_files.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

// One question at a time, to one daemon after the other. Threads: one caller.
class LeaderWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kDeadline{2};  // of a question

  // another: a daemon of the list. position, own: places in it of that one and of the rank's own.
  // Of two terms the higher one leads; of equal ones, the daemon that stands first in the list: the
  // ranks' lists are equal, so all come to the same end.
  static bool Leads(const v1::GetLeaderResponse& another, size_t position, int64_t own_term,
                    size_t own);

  // endpoints: the whole list; own: the place of the rank's daemon in it. every: between questions.
  LeaderWatch(const std::vector<std::string>& endpoints, size_t own, wire::TlsFiles tls,
              absl::Duration every, uint64_t seed);

  // The rank was welcomed with this term: the first question is due after up to `every`.
  void Begin(const wire::Hello& hello, int64_t term);
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
  Clock::time_point due_ = Clock::time_point::max();
  size_t next_ = 0;  // in others_
  // Of the open question.
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<v1::Balancer::Stub> stub_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::GetLeaderResponse>> call_;
  v1::GetLeaderResponse response_;
  grpc::Status status_;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_LEADER_WATCH_H_
