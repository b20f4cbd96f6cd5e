// The control channel over TCP: a tree of fan-out 8. Minima go up, and the result goes down. A rank
// that notices a failure asks its subtree for missing ranks (kQuery), reports to its parent
// (kReport) and waits for the verdict (kAbort). The root sends the verdict down to all ranks. A
// rank without a verdict blames the ranks that it found missing, or its own neighbour.
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/wait_check.h"
#include "client/rows/control/control_channel.h"
#include "client/rows/control/control_message.h"
#include "client/rows/control/meeting.h"
#include "client/rows/control/socket.h"
#include "client/rows/control/tree_neighbours.h"

namespace eplb {
namespace {

constexpr char kClosed[] = "it has closed";

// Why a call cannot go on.
struct Trouble {
  std::set<RankId> ranks = {};  // known to be missing
  std::string why = {};
  bool blame_late = false;              // a deadline passed: who does not answer is missing
  bool final = false;                   // the parent's verdict: nothing more to ask
  std::optional<RankId> reporter = {};  // rank that gave up without naming another
};

struct Call {
  ControlOp op = ControlOp::kBarrier;
  std::vector<int64_t> values = {};
  absl::Time deadline = {};
  absl::Duration timeout = {};
  bool sent_up = false;

  std::string Name() const {
    switch (op) {
      case ControlOp::kBarrier:
        return "Barrier";
      case ControlOp::kFarewell:
        return "Farewell";
      case ControlOp::kAllReduceMin:
        break;
    }
    return absl::StrCat("AllReduceMin of ", values.size(), " values");
  }
};

class TcpChannel : public ControlChannel {
 public:
  TcpChannel(const TcpControlOptions& options, std::map<RankId, MetPeer>&& peers)
      : options_(options),
        owner_(getpid()),
        height_(HeightOf(options.rank, options.world_size)),
        neighbours_(options.rank, std::move(peers)),
        parent_(neighbours_.parent()) {
    // Each ancestor may spend a grace for each level below it and one for its own parent.
    verdict_patience_ = options.grace;
    for (RankId r = options.rank; r.value != 0; r = ParentOf(r)) {
      verdict_patience_ += options.grace * (HeightOf(ParentOf(r), options.world_size) + 1);
    }
  }

  ~TcpChannel() override {
    if (getpid() == owner_)
      neighbours_.HangUp();  // also where a forked child still holds the descriptors
  }

  RankId rank() const override { return options_.rank; }
  int32_t world_size() const override { return options_.world_size; }

  absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                    absl::Duration timeout) override {
    if (values.empty() || values.size() > kMaxVoteValues) {
      return InvalidInput("AllReduceMin takes 1..", kMaxVoteValues, " values, got ", values.size());
    }
    Call call{.op = ControlOp::kAllReduceMin,
              .values = std::vector<int64_t>(values.begin(), values.end()),
              .deadline = MonotonicNow() + timeout,
              .timeout = timeout};
    return Run(call);
  }

  absl::Status Barrier(absl::Duration timeout) override {
    return RunWithoutValues(ControlOp::kBarrier, timeout);
  }

  absl::Status Farewell(absl::Duration timeout) override {
    return RunWithoutValues(ControlOp::kFarewell, timeout);
  }

 private:
  absl::Status RunWithoutValues(ControlOp op, absl::Duration timeout) {
    Call call{.op = op, .deadline = MonotonicNow() + timeout, .timeout = timeout};
    return Run(call).status();
  }

  absl::StatusOr<std::vector<int64_t>> Run(Call& call) {
    if (!broken_.ok()) return broken_;
    if (getpid() != owner_) {
      return FailedPrecondition("the control channel belongs to another process");
    }
    ++call_number_;
    neighbours_.ForgetAnswers();
    std::optional<Trouble> trouble = GatherUp(call);
    if (!trouble.has_value() && parent_ != nullptr) {
      Send(*parent_, Frame(ControlMessageType::kUp, call));
      call.sent_up = true;
      trouble = AwaitDown(call);
    }
    if (trouble.has_value()) trouble = SettleTrouble(call, *std::move(trouble));
    if (trouble.has_value()) return Break(call, *trouble);
    // A child that cannot be reached any more is found by the next call; this result stands.
    const ControlMessage result = Frame(ControlMessageType::kDown, call);
    for (Neighbour& child : neighbours_.children()) Send(child, result);
    return call.values;
  }

  // Waits for every child's minimum.
  std::optional<Trouble> GatherUp(Call& call) {
    std::optional<Trouble> trouble;
    for (const Neighbour& child : neighbours_.children()) {
      if (!child.gone) continue;  // it left after the last vote
      Merge(Trouble{.ranks = {child.rank}, .why = "connection closed"}, trouble);
    }
    while (!trouble.has_value() && !neighbours_.AllAnswered()) {
      const std::vector<NeighbourEvent> events = neighbours_.Receive(call.deadline);
      if (events.empty()) return TimedOut(call);
      for (const NeighbourEvent& event : events) Merge(OnEvent(call, event), trouble);
    }
    return trouble;
  }

  // Waits for the parent's result.
  std::optional<Trouble> AwaitDown(Call& call) {
    std::optional<Trouble> trouble;
    while (!trouble.has_value()) {
      const std::vector<NeighbourEvent> events = neighbours_.Receive(call.deadline);
      if (events.empty()) return TimedOut(call);
      if (TookResult(call, events)) return std::nullopt;
      for (const NeighbourEvent& event : events) Merge(OnEvent(call, event), trouble);
    }
    return trouble;
  }

  // Nothing came before the deadline, or before the thread's WaitCheck failed.
  Trouble TimedOut(const Call& call) const {
    if (const absl::Status stopped = CheckWait(); !stopped.ok()) {
      return {.ranks = {options_.rank},
              .why = absl::StrCat("its wait was interrupted: ", stopped.message())};
    }
    return {.why = absl::StrCat("no answer in ", absl::FormatDuration(call.timeout)),
            .blame_late = true};
  }

  // True when the parent's result is among the events; `call` has its values then. Whatever else
  // came with it is settled by the next call.
  bool TookResult(Call& call, const std::vector<NeighbourEvent>& events) const {
    for (const NeighbourEvent& event : events) {
      if (event.from != parent_ || !event.frame.has_value() || !call.sent_up) continue;
      const ControlMessage& frame = *event.frame;
      if (frame.type != ControlMessageType::kDown || frame.call != call_number_ ||
          frame.op != call.op || frame.values.size() != call.values.size()) {
        continue;
      }
      call.values = frame.values;
      return true;
    }
    return false;
  }

  std::optional<Trouble> OnEvent(Call& call, const NeighbourEvent& event) {
    if (event.from == parent_) return OnParent(call, event);
    return OnChild(call, event);
  }

  std::optional<Trouble> OnChild(Call& call, const NeighbourEvent& event) {
    Neighbour& child = *event.from;
    if (!event.frame.has_value()) {
      // Its vote is in: the result may still come, and the next call will notice.
      if (child.answered) return std::nullopt;
      return Trouble{.ranks = {child.rank}, .why = event.why};
    }
    const ControlMessage& frame = *event.frame;
    if (frame.type == ControlMessageType::kReport) {
      if (frame.call < call_number_) return std::nullopt;  // it got that result after all
      child.answered = true;
      Trouble trouble{.ranks = {frame.ranks.begin(), frame.ranks.end()},
                      .why = frame.why,
                      .blame_late = frame.blame_late};
      if (frame.ranks.empty()) trouble.reporter = child.rank;
      return trouble;
    }
    if (frame.type != ControlMessageType::kUp || child.answered || frame.call != call_number_ ||
        frame.op != call.op || frame.values.size() != call.values.size()) {
      return Mismatch(call, child.rank, frame);
    }
    for (size_t i = 0; i < call.values.size(); ++i) {
      call.values[i] = std::min(call.values[i], frame.values[i]);
    }
    child.answered = true;
    return std::nullopt;
  }

  std::optional<Trouble> OnParent(const Call& call, const NeighbourEvent& event) const {
    if (!event.frame.has_value()) {
      return Trouble{.ranks = {parent_->rank}, .why = event.why};
    }
    const ControlMessage& frame = *event.frame;
    switch (frame.type) {
      case ControlMessageType::kAbort:
        return Trouble{
            .ranks = {frame.ranks.begin(), frame.ranks.end()}, .why = frame.why, .final = true};
      case ControlMessageType::kQuery:
        // After our vote went up the verdict follows by itself.
        if (call.sent_up || frame.call < call_number_) return std::nullopt;
        return Trouble{.why = frame.why, .blame_late = frame.blame_late};
      default:
        return Mismatch(call, parent_->rank, frame);
    }
  }

  Trouble Mismatch(const Call& call, RankId peer, const ControlMessage& frame) const {
    if ((call.op == ControlOp::kFarewell) != (frame.op == ControlOp::kFarewell)) {
      const RankId closed = call.op == ControlOp::kFarewell ? options_.rank : peer;
      return {.ranks = {closed}, .why = kClosed};
    }
    const Call other{.op = frame.op, .values = frame.values};
    return {.ranks = {peer},
            .why = absl::StrCat("it made call ", frame.call, " (", other.Name(), ") where rank ",
                                options_.rank.value, " made call ", call_number_, " (", call.Name(),
                                ")")};
  }

  // Learns the names: from the subtree, then from the parent. Nothing is returned when the result
  // came after all; it is in `call` then.
  std::optional<Trouble> SettleTrouble(Call& call, Trouble trouble) {
    if (!trouble.final) AskSubtree(call, trouble);
    if (!trouble.final && parent_ != nullptr && !parent_->gone) {
      if (AskParent(call, trouble)) return std::nullopt;
    }
    if (trouble.ranks.empty()) {
      trouble.ranks.insert(
          trouble.reporter.value_or(parent_ != nullptr ? parent_->rank : options_.rank));
    }
    return trouble;
  }

  void AskSubtree(Call& call, Trouble& trouble) {
    ControlMessage query = Frame(ControlMessageType::kQuery, call);
    query.why = trouble.why;
    query.blame_late = trouble.blame_late;
    for (Neighbour& child : neighbours_.children()) {
      if (!child.answered) Send(child, query);
    }
    const absl::Time until = MonotonicNow() + options_.grace * std::max(height_, 1);
    while (!neighbours_.AllAnswered() && !trouble.final && !(parent_ != nullptr && parent_->gone)) {
      const std::vector<NeighbourEvent> events = neighbours_.Receive(until);
      if (events.empty()) break;
      for (const NeighbourEvent& event : events) Add(OnEvent(call, event), trouble);
    }
    if (trouble.final || !trouble.blame_late) return;
    for (const Neighbour& child : neighbours_.children()) {
      if (!child.answered) trouble.ranks.insert(child.rank);
    }
  }

  // True when the result came instead of a verdict.
  bool AskParent(Call& call, Trouble& trouble) {
    ControlMessage report = Frame(ControlMessageType::kReport, call);
    report.ranks.assign(trouble.ranks.begin(), trouble.ranks.end());
    report.why = trouble.why;
    report.blame_late = trouble.blame_late;
    Send(*parent_, report);
    const absl::Time until = MonotonicNow() + verdict_patience_;
    while (!trouble.final && !parent_->gone) {
      const std::vector<NeighbourEvent> events = neighbours_.Receive(until);
      if (events.empty()) {
        if (trouble.blame_late || trouble.ranks.empty()) trouble.ranks.insert(parent_->rank);
        return false;
      }
      if (TookResult(call, events)) return true;
      for (const NeighbourEvent& event : events) Add(OnEvent(call, event), trouble);
    }
    return false;
  }

  static void Merge(std::optional<Trouble> more, std::optional<Trouble>& trouble) {
    if (trouble.has_value()) {
      Add(std::move(more), *trouble);
    } else {
      trouble = std::move(more);
    }
  }

  static void Add(std::optional<Trouble> more, Trouble& trouble) {
    if (!more.has_value()) return;
    trouble.blame_late = trouble.blame_late || more->blame_late;
    const bool first_names = trouble.ranks.empty() && !more->ranks.empty();
    trouble.ranks.insert(more->ranks.begin(), more->ranks.end());
    if ((first_names || more->final) && !more->why.empty()) trouble.why = more->why;
    trouble.final = trouble.final || more->final;
    if (!trouble.reporter.has_value()) trouble.reporter = more->reporter;
  }

  absl::Status Break(const Call& call, const Trouble& trouble) {
    ControlMessage abort = Frame(ControlMessageType::kAbort, call);
    abort.ranks.assign(trouble.ranks.begin(), trouble.ranks.end());
    abort.why = trouble.why;
    for (Neighbour& child : neighbours_.children()) Send(child, abort);
    broken_ = MissingRanksError(call.Name(), abort.ranks, trouble.why);
    neighbours_.HangUp();
    return broken_;
  }

  ControlMessage Frame(ControlMessageType type, const Call& call) const {
    const bool carries_values =
        type == ControlMessageType::kUp || type == ControlMessageType::kDown;
    return {.type = type,
            .op = call.op,
            .call = call_number_,
            .values = carries_values ? call.values : std::vector<int64_t>{}};
  }

  // A neighbour that cannot take a frame is found to be gone, or late, by the reading side.
  void Send(Neighbour& to, const ControlMessage& frame) {
    if (!to.gone) (void)to.connection.Send(frame, MonotonicNow() + options_.grace);
  }

  const TcpControlOptions options_;
  const pid_t owner_;
  const int32_t height_;
  absl::Duration verdict_patience_;
  TreeNeighbours neighbours_;
  Neighbour* const parent_;  // null at the root
  uint64_t call_number_ = 0;
  absl::Status broken_;
};

// answers: of each rank, its address and its host. errors: FailedPrecondition, equal on all ranks,
// when a rank of several hosts gave an address that only its own host reaches.
absl::StatusOr<std::vector<std::string>> AddressesOf(const std::vector<std::string>& answers) {
  std::vector<std::string> addresses;
  std::set<std::string> hosts;
  for (const std::string& answer : answers) {
    const size_t end = std::min(answer.find('\n'), answer.size());
    addresses.push_back(answer.substr(0, end));
    hosts.insert(answer.substr(end));
  }
  for (size_t rank = 0; rank < addresses.size() && hosts.size() > 1; ++rank) {
    if (!IsLoopbackAddress(addresses[rank])) continue;
    return FailedPrecondition("the ranks are on ", hosts.size(), " hosts, and rank ", rank,
                              " listens at ", addresses[rank],
                              ", which no other host reaches: set the option bind_address to the "
                              "numeric address of an interface that the others reach");
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlChannel>> MakeTcpControlChannel(
    const TcpControlOptions& options, const AllGather& all_gather) {
  EPLB_RETURN_IF_ERROR(CheckRank("control channel", options.rank, options.world_size));
  if (options.secret.empty()) return InvalidInput("control channel: the secret is empty");
  EPLB_ASSIGN_OR_RETURN(const Listener listener, ListenTcp(options.bind_address, 0));
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                        GatherAll("control channel",
                                  absl::StrCat(listener.address, "\n",
                                               options.host.empty() ? BootId() : options.host),
                                  options.world_size, all_gather));
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, AddressesOf(answers));
  MeetOptions meet{.handshake = {.secret = options.secret,
                                 .role = ConnectionRole::kControl,
                                 .self = options.rank},
                   .expect = ChildrenOf(options.rank, options.world_size),
                   .listeners = {&listener},
                   .deadline = MonotonicNow() + options.connect_timeout};
  if (options.rank.value != 0) {
    const RankId parent = ParentOf(options.rank);
    meet.dial.push_back({.rank = parent, .addresses = {addresses[parent.value]}});
  }
  EPLB_ASSIGN_OR_RETURN(Meeting meeting, MeetPeers("control channel", meet));
  return std::make_unique<TcpChannel>(options, std::move(meeting.peers));
}

}  // namespace eplb
