#include "client/session/connection.h"

#include <memory>

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_stream.h>

#include "base/errors.h"
#include "client/session/channel.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point In(absl::Duration duration) {
  return Clock::now() + absl::ToChronoNanoseconds(duration);
}

// The order of an asynchronous stream: StartCall, then one Read and one Write at a time, Finish
// after the last Read. Every operation started comes out of the queue exactly once.
class Connection {
 public:
  Connection(const ConnectionOptions& options, const EndpointChoice& choice,
             const std::shared_ptr<grpc::Channel>& channel, SharedMember& member,
             ConnectionFigures& figures)
      : options_(options),
        choice_(choice),
        member_(member),
        figures_(figures),
        leaders_(choice.endpoints(), choice.position(), options.tls, options.leader_every,
                 options.seed),
        stub_(v1::Balancer::NewStub(channel)) {}

  ConnectionEnd Run(const std::function<bool()>& give_up) {
    deadline_ = In(options_.welcome_deadline);
    stream_ = stub_->PrepareAsyncSession(&context_, &queue_);
    stream_->StartCall(Begin(kStart));
    while (pending_ > 0) {
      void* tag = nullptr;
      bool ok = false;
      const gpr_timespec until = gpr_time_add(
          gpr_now(GPR_CLOCK_MONOTONIC),
          gpr_time_from_millis(absl::ToInt64Milliseconds(kPollInterval), GPR_TIMESPAN));
      if (queue_.AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::GOT_EVENT) {
        --pending_;
        OnDone(static_cast<Operation>(reinterpret_cast<intptr_t>(tag)), ok);
      }
      OnTurn(give_up);
    }
    figures_.OnEnd();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
    if (!cancel_reason_.ok()) end_.status = cancel_reason_;
    return std::move(end_);
  }

 private:
  enum Operation : intptr_t { kStart = 1, kRead, kWrite, kWritesDone, kFinish, kLeader };

  static void* TagOf(Operation operation) {
    return reinterpret_cast<void*>(static_cast<intptr_t>(operation));  // NOLINT: a tag, no pointer
  }

  void* Begin(Operation operation) {
    ++pending_;
    return TagOf(operation);
  }

  void OnDone(Operation operation, bool ok) {
    switch (operation) {
      case kStart:
        if (!ok) return Finish();
        hello_ = member_.Connect();
        Write(hello_);
        return Read();
      case kRead:
        return ok ? OnMessage() : Finish();
      case kWrite:
        writing_ = false;
        broken_ = broken_ || !ok;  // the Read ends too, and Finish says why
        end_.said_goodbye = ok && writing_goodbye_;
        return;
      case kWritesDone:
        return;
      case kFinish:
        end_.status = wire::FromGrpc(status_, context_);
        end_.standby = wire::LeaderIn(end_.status);
        return;
      case kLeader:
        if (std::optional<wire::Moved> leader = leaders_.OnAnswer();
            leader.has_value() && choice_.MayGoTo(leader->endpoint, Clock::now())) {
          end_.moved = std::move(leader);
        }
        return;
    }
  }

  void OnMessage() {
    const absl::StatusOr<wire::DownMessage> message = wire::FromProto(down_);
    if (absl::IsUnimplemented(message.status())) {
      OnUnknown(message.status());
    } else if (!message.ok()) {
      Cancel(Internal("a message that it does not understand: ", message.status().message()));
    } else if (const auto* welcome = std::get_if<wire::Welcome>(&*message)) {
      OnWelcome(*welcome);
    } else if (!end_.welcomed) {
      Cancel(Internal("its first message is not Welcome"));
    } else if (std::holds_alternative<wire::Drain>(*message)) {
      end_.drained = true;
    } else {
      member_.OnDown(*message);
      if (std::holds_alternative<wire::Keep>(*message) && options_.on_keep) options_.on_keep();
    }
    Read();
  }

  void OnWelcome(const wire::Welcome& welcome) {
    member_.OnDown(welcome);
    end_.welcomed = true;
    deadline_ = Clock::time_point::max();
    figures_.OnWelcome();
    leaders_.Begin(hello_, welcome);
    elected_ = welcome.election_term > 0;
    if (options_.on_welcome) options_.on_welcome(welcome);
  }

  void OnUnknown(const absl::Status& unknown) {
    figures_.Add(&SessionStats::unknown_messages);
    if (std::exchange(told_unknown_, true) || !options_.on_unknown) return;
    options_.on_unknown(std::string(unknown.message()));
  }

  void OnTurn(const std::function<bool()>& give_up) {
    if (finishing_) {
      // A message that cannot be parsed ends the reading, and not the stream: the daemon goes on.
      if (Clock::now() > deadline_ || give_up()) {
        Cancel(
            Internal("a message of the daemon could not be read, and it did not end the stream"));
      }
      return;
    }
    if (Clock::now() > deadline_) {
      Cancel(DeadlineExceeded(end_.welcomed ? "the stream did not end before its deadline"
                                            : "no Welcome before the deadline"));
    } else if (give_up()) {
      Cancel(absl::CancelledError("the client closes"));
    } else if (member_.TakeOverflow()) {
      Cancel(ResourceExhausted("the daemon does not read"));
    } else if (end_.welcomed && !writing_ && !half_closed_ && !broken_) {
      WriteNext();
    }
    if (end_.welcomed && !half_closed_ && !broken_ && leaders_.Due(Clock::now()) &&
        leaders_.Ask(&queue_, TagOf(kLeader))) {
      ++pending_;
    }
  }

  void WriteNext() {
    if (end_.said_goodbye || said_moved_) return HalfClose();
    if (end_.moved.has_value()) {
      said_moved_ = true;
      return Write(*end_.moved);
    }
    const std::optional<wire::UpMessage> message = member_.Next(/*with_windows=*/!end_.drained);
    if (!message.has_value()) {
      if (end_.drained) HalfClose();
      return;
    }
    if (std::holds_alternative<wire::LoadReport>(*message))
      figures_.Add(&SessionStats::reports_sent);
    writing_goodbye_ = std::holds_alternative<wire::Goodbye>(*message);
    Write(*message);
  }

  void Write(const wire::UpMessage& message) {
    up_.Clear();
    wire::ToProto(message, &up_);
    writing_ = true;
    stream_->Write(up_, Begin(kWrite));
  }

  void HalfClose() {
    half_closed_ = true;
    leaders_.Cancel();
    const bool deposed = elected_ && end_.moved.has_value();
    deadline_ = In(deposed ? options_.deposed_deadline : options_.goodbye_deadline);
    stream_->WritesDone(Begin(kWritesDone));
  }

  void Read() { stream_->Read(&down_, Begin(kRead)); }

  void Finish() {
    finishing_ = true;
    deadline_ = In(options_.goodbye_deadline);
    leaders_.Cancel();
    stream_->Finish(&status_, Begin(kFinish));
  }

  // Every open operation comes back soon after.
  void Cancel(absl::Status reason) {
    if (!cancel_reason_.ok()) return;
    cancel_reason_ = std::move(reason);
    deadline_ = Clock::time_point::max();
    broken_ = true;
    context_.TryCancel();
  }

  const ConnectionOptions& options_;
  const EndpointChoice& choice_;
  SharedMember& member_;
  ConnectionFigures& figures_;
  LeaderWatch leaders_;
  std::unique_ptr<v1::Balancer::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  wire::Hello hello_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::Up, v1::Down>> stream_;
  v1::Up up_;
  v1::Down down_;
  grpc::Status status_;
  absl::Status cancel_reason_;
  ConnectionEnd end_;
  Clock::time_point deadline_;
  int pending_ = 0;
  bool writing_ = false;
  bool writing_goodbye_ = false;
  bool said_moved_ = false;
  bool elected_ = false;
  bool told_unknown_ = false;
  bool half_closed_ = false;
  bool broken_ = false;
  bool finishing_ = false;
};

}  // namespace

void ConnectionFigures::OnWelcome() {
  const absl::MutexLock lock(&mutex_);
  ++stats_.reconnects;
  if (!stats_.connected) away_ += Clock::now() - away_since_;
  stats_.connected = true;
}

void ConnectionFigures::Add(int64_t SessionStats::*figure) {
  const absl::MutexLock lock(&mutex_);
  ++(stats_.*figure);
}

void ConnectionFigures::OnEnd() {
  const absl::MutexLock lock(&mutex_);
  if (stats_.connected) away_since_ = Clock::now();
  stats_.connected = false;
}

SessionStats ConnectionFigures::stats() const {
  const absl::MutexLock lock(&mutex_);
  const Clock::duration away = stats_.connected ? away_ : away_ + (Clock::now() - away_since_);
  SessionStats stats = stats_;
  stats.reconnects = std::max<int64_t>(0, stats.reconnects);
  stats.disconnected_seconds = std::chrono::duration<double>(away).count();
  return stats;
}

ConnectionEnd RunConnection(const ConnectionOptions& options, const EndpointChoice& choice,
                            SharedMember& member, const std::function<bool()>& give_up,
                            ConnectionFigures& figures) {
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
      MakeChannel(choice.current(), options.tls);
  // Files are renewed while a job runs: the next attempt may find them right.
  if (!channel.ok()) return {.status = Unavailable(channel.status().message())};
  return Connection(options, choice, *channel, member, figures).Run(give_up);
}

}  // namespace eplb
