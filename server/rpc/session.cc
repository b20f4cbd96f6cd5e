// The reactor of a stream: reads, checks and hands on; writes what the mailbox holds.
#include "server/rpc/session.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"
#include "server/runner/rate_limit.h"

namespace eplb {

namespace {

// Longest burst. Messages of a rank that the daemon or the network held up arrive together. The
// client's keepalive ends such a connection after 20 s.
constexpr absl::Duration kBurst = absl::Seconds(20);

class SessionReactor : public SessionStream, public std::enable_shared_from_this<SessionReactor> {
 public:
  SessionReactor(grpc::CallbackServerContext* context, const SessionServices& services)
      : context_(context),
        runner_(services.runner),
        gate_(services.gate),
        ends_(services.ends),
        bytes_(services.bytes),
        peer_(gate_->IdentityOf(*context)),
        host_(HostOf(context->peer())),
        rate_(services.messages_per_second, MonotonicNow(), kBurst) {}

  void Begin() {
    self_ = shared_from_this();
    // The mailbox may outlive the stream for a moment in the hands of the runner.
    const auto while_alive = [weak = weak_from_this()](void (SessionReactor::*reaction)()) {
      return [weak, reaction] {
        if (const auto self = weak.lock()) (*self.*reaction)();
      };
    };
    mailbox_ = std::make_shared<Mailbox>(
        Mailbox::Callbacks{.wake = while_alive(&SessionReactor::Pump),
                           .cancel = while_alive(&SessionReactor::Cancel),
                           .read = while_alive(&SessionReactor::ReadNext)});
    const absl::Status admitted = gate_->OpenSession(host_);
    if (!admitted.ok()) {
      runner_->sessions().NoteRefused(admitted, MonotonicNow());
      return mailbox_->Close(admitted);
    }
    counted_ = true;
    const absl::StatusOr<core::SessionId> session =
        runner_->sessions().Open(mailbox_, MonotonicNow());
    if (!session.ok()) {
      if (absl::IsResourceExhausted(session.status())) {
        runner_->sessions().NoteRefused(session.status(), MonotonicNow());
        (void)Refuse(Refusal::kLimited, session.status());
        return;
      }
      return mailbox_->Close(session.status());
    }
    session_ = *session;
    ReadNext();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      if (Receive()) ReadNext();
      return;
    }
    // After Goodbye the core ends the stream once it has read it: closing here would discard what
    // still waits in the queue.
    if (said_goodbye_) return;
    {
      const std::lock_guard lock(mutex_);
      lost_ = !mailbox_->closing();
    }
    if (!spoke_ && !mailbox_->closing()) {
      gate_->Refuse(Refusal::kMalformed, host_, "the stream ended before its first message");
    }
    // A rank that obeys a Drain half-closes, so this must be no refusal: it shall come back.
    mailbox_->Close(absl::UnavailableError("the stream ended without Goodbye"));
  }

  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
      peer_gone_ = peer_gone_ || !ok;
    }
    Pump();
  }

  void OnCancel() override {
    {
      const std::lock_guard lock(mutex_);
      peer_gone_ = true;
    }
    Pump();
  }

  void OnDone() override {
    if (counted_) gate_->CloseSession(host_);
    ++(said_goodbye_ ? ends_->goodbye : lost_ ? ends_->lost : ends_->closed);
    if (session_ != 0) {
      runner_->sessions().Remove(session_);
      if (spoke_) {
        (void)runner_->Push(core::SessionClosed{.session = session_, .reason = EndReason()});
      }
    }
    const std::shared_ptr<SessionReactor> last = std::move(self_);
  }

 private:
  // Starts the next write, or ends the stream when there is nothing more to write. Calls gRPC
  // without the lock: its calls may run other reactions.
  void Pump() {
    std::optional<wire::DownMessage> message;
    grpc::Status end;
    {
      const std::lock_guard lock(mutex_);
      if (finished_ || writing_) return;
      if (!peer_gone_) message = mailbox_->Take();
      if (message) {
        writing_ = true;
      } else {
        const std::optional<absl::Status> closing = mailbox_->closing();
        if ((!closing && !peer_gone_) || calls_ > 0) return;
        finished_ = true;
        lost_ = lost_ || !closing;
        end = closing ? wire::ToGrpc(*closing)
                      : grpc::Status(grpc::StatusCode::CANCELLED, "the peer disconnected");
      }
    }
    if (!message) return Finish(end);
    if (std::holds_alternative<wire::NeedPlacement>(*message)) asked_ = true;
    down_ = bytes_->Of(*message);
    StartWrite(&down_);
  }

  void ReadNext() {
    const std::shared_ptr<SessionReactor> self = shared_from_this();
    {
      const std::lock_guard lock(mutex_);
      if (finished_ || mailbox_->closing()) return;
      ++calls_;  // Finish waits until StartRead has returned
    }
    StartRead(&up_);
    {
      const std::lock_guard lock(mutex_);
      --calls_;
    }
    Pump();
  }

  // Returns false if the stream must not read on yet. Once the runner has the message, the next
  // read may begin on its thread, so nothing of the reading reactions is touched any more.
  bool Receive() {
    v1::Up up;
    const bool parsed = ParseBytes(up_, &up);
    up_.Clear();  // a report must not stay in memory until the next message
    if (!parsed) {
      return Refuse(Refusal::kMalformed,
                    absl::InvalidArgumentError("a message could not be parsed"));
    }
    const bool report = up.has_load_report();
    if (!rate_.Take(MonotonicNow())) {
      if (report) {
        runner_->CountLimitedReport(session_);
        return true;
      }
      return Refuse(Refusal::kLimited,
                    absl::ResourceExhaustedError(
                        "more messages a second than limits.messages_per_second allows"));
    }
    // Before anything is made of it: who speaks is not known yet.
    if (!spoke_ && !up.has_hello()) {
      return Refuse(Refusal::kMalformed,
                    absl::InvalidArgumentError("the first message of a session must be Hello"));
    }
    // The daemon did not ask for it.
    if (up.has_placement_body() && !asked_.exchange(false)) return true;
    absl::StatusOr<wire::UpMessage> message = wire::FromProto(std::move(up));
    if (absl::IsUnimplemented(message.status())) return Skip(message.status());
    if (!message.ok()) return Refuse(Refusal::kMalformed, message.status());
    // Any Hello: a later one might name another job.
    if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
      const absl::Status allowed = gate_->Authorize(peer_, Verb::kSession, hello->job);
      if (!allowed.ok()) {
        mailbox_->Close(allowed);
        return true;
      }
    }
    said_goodbye_ = std::holds_alternative<wire::Goodbye>(*message);
    if (!spoke_) runner_->sessions().Spoke(session_);
    spoke_ = true;
    const Admission admission =
        runner_->Push(core::SessionMessage{.session = session_, .message = *std::move(message)});
    if (admission == Admission::kFull) {
      mailbox_->Close(absl::ResourceExhaustedError(
          "the daemon is behind: limits.max_queued_events messages wait"));
    }
    return admission != Admission::kQueuedLast;
  }

  bool Refuse(Refusal refusal, const absl::Status& status) {
    gate_->Refuse(refusal, host_, {status.message().data(), status.message().size()});
    mailbox_->Close(status);
    return true;
  }

  // A rank of a later version says more than this daemon knows. Logged once per stream.
  bool Skip(const absl::Status& unknown) {
    if (std::exchange(skipped_, true)) {
      gate_->Count(Refusal::kUnknownMessage);
      return true;
    }
    gate_->Refuse(Refusal::kUnknownMessage, host_,
                  absl::StrCat(unknown.message(), "; it is skipped and the session continues"));
    return true;
  }

  void Cancel() {
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;  // the context may be gone
      ++calls_;
    }
    context_->TryCancel();
    {
      const std::lock_guard lock(mutex_);
      --calls_;
    }
    Pump();
  }

  std::string EndReason() const {
    if (said_goodbye_) return "Goodbye";
    const std::optional<absl::Status> closing = mailbox_->closing();
    return closing ? std::string(closing->message()) : "the peer disconnected without Goodbye";
  }

  grpc::CallbackServerContext* const context_;
  Runner* const runner_;
  Gate* const gate_;
  StreamEndCounters* const ends_;
  MessageBytes* const bytes_;
  const PeerIdentity peer_;
  const std::string host_;
  bool counted_ = false;  // among the host's sessions
  RateLimit rate_;        // used by the reading reactions, which never overlap; so are the next six
  core::SessionId session_ = 0;
  bool spoke_ = false;
  bool said_goodbye_ = false;
  bool skipped_ = false;             // a message of an unknown kind
  std::atomic<bool> asked_ = false;  // for the body of its placement
  grpc::ByteBuffer up_;
  std::shared_ptr<SessionReactor> self_;  // until OnDone
  grpc::ByteBuffer down_;                 // bytes of the one write at work
  std::shared_ptr<Mailbox> mailbox_;
  std::mutex mutex_;  // guards what follows
  bool writing_ = false;
  bool peer_gone_ = false;
  bool lost_ = false;  // the peer ended it first
  bool finished_ = false;
  int calls_ = 0;  // calls into gRPC that must return before Finish
};

}  // namespace

SessionStream* StartSession(grpc::CallbackServerContext* context, const SessionServices& services) {
  const auto reactor = std::make_shared<SessionReactor>(context, services);
  reactor->Begin();
  return reactor.get();
}

}  // namespace eplb
