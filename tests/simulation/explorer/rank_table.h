// A rank as a table: the real Member runs once for each pair of a state and an event that is met.
// A rank's state, here a cell, is its member, where its training thread stands in the vote, and its
// streams with what is under way on them in both directions. Nothing in a cell says which rank it
// is: ranks with equal cells are interchangeable.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "client/run_log/history.h"
#include "client/session/member.h"
#include "tests/simulation/explorer/core_table.h"
#include "tests/simulation/explorer/interned.h"
#include "tests/simulation/explorer/member_peer.h"
#include "tests/simulation/explorer/mutant.h"

namespace eplb::explorer {

// Position of the training thread. kGet*: the vote has an outcome that this rank has not taken yet.
enum class Pc : uint8_t { kTrain, kWaiting, kGetNothing, kGetApply, kGetDrop, kGetEnd, kEnded };

// kAway: no stream; one is opened at some time. kCut: the daemon is not there any more, what had
// arrived may still be read. kDone: Goodbye was said.
enum class Stream : uint8_t { kAway, kCut, kOpen, kDone };

using MessageQueue = std::vector<uint32_t>;  // ids in Messages

// A stream that this rank gave up and whose end the daemon has not seen.
struct OldStream {
  int number = 0;
  bool orderly = false;   // all of `up` arrives before the end; else the end may overtake it
  bool is_older = false;  // than a stream that was heard
  MessageQueue up;
};

struct Cell {
  static constexpr uint32_t kNobody = 0xffffffff;

  uint32_t member = kNobody;  // kNobody: no process
  Pc pc = Pc::kTrain;
  Stream stream = Stream::kAway;
  bool welcomed = false;
  int number = 0;  // number of the open stream
  int lead = 0;    // votes that this rank left out; mutants only
  MessageQueue up;
  MessageQueue down;
  std::vector<OldStream> old;

  bool has_process() const { return member != kNobody; }
};

// How the next message of a queue arrives.
enum class Arrival : uint8_t { kInOrder, kLost, kTwice, kOvertaken };
inline constexpr int kArrivals = 4;

// A rank after one event of its own, and what it wrote into its log.
struct RankStep {
  uint32_t cell = 0;
  std::vector<HistoryRecord> log;  // step and run are filled in by the explorer
  bool old_term = false;           // was welcomed with a term below one it has seen
};

struct UpStep {
  uint32_t cell = 0;                // without the message, where it is used up
  std::optional<uint32_t> message;  // absent: it was lost
  int number = 0;                   // number of its stream
};

class RankTable {
 public:
  RankTable(Messages* messages, Mutant mutant);

  uint32_t Nobody() const { return 0; }
  // A process that runs this placement and has heard of term and version from an earlier daemon.
  uint32_t Run(int64_t version, const Digest& digest, int64_t seen_term, int64_t seen_version);

  const RankStep& DeliverDown(uint32_t cell, Arrival arrival);
  const RankStep& Connect(uint32_t cell, int number);
  // Reads what it is to carry, where nothing else is under way to it. See HasNews.
  const RankStep& ReadKeeps(uint32_t cell);
  const RankStep& GiveUpStream(uint32_t cell);  // no Welcome came
  const RankStep& EnterVote(uint32_t cell);
  const RankStep& SkipVote(uint32_t cell);
  const RankStep& TakeOutcome(uint32_t cell);
  // The vote is over for this rank; `minimum` as AllReduceMin gave it, to Decide on. outcome: one
  // of kGet*.
  const RankStep& SetOutcome(uint32_t cell, Pc outcome);

  // stream: -1 is the open one, else an index in `old`.
  const UpStep& TakeUp(uint32_t cell, int stream, Arrival arrival);
  const RankStep& DropOld(uint32_t cell, int index);
  const RankStep& PushDown(uint32_t cell, int number, uint32_t message);
  const RankStep& CloseByDaemon(uint32_t cell, int number);
  const RankStep& LoseDaemon(uint32_t cell);
  const RankStep& Cut(uint32_t cell);
  const RankStep& Kill(uint32_t cell);

  const Cell& operator[](uint32_t cell) const { return cells_[cell]; }
  const Member& MemberOf(const Cell& cell) const { return members_[cell.member]; }
  // Something but Keeps is under way to it. Only the rank's next Hello shows that a Keep arrived:
  // one is read with the message behind it, or, where there is none, before the next stream or
  // never.
  bool HasNews(const Cell& cell) const { return Waiting(cell) > 0; }
  // How many messages there are behind the Keeps that come first.
  size_t Waiting(const Cell& cell) const;
  // It was told that this run, its own, is in QUARANTINE.
  bool CarriesQuarantine(const Cell& cell, int run) const;
  // Returns the values that this rank brings into the vote in which it waits.
  std::array<int64_t, 6> Values(const Cell& cell) const;
  // Returns the proposal of the vote in which it waits; null if it was not PREPARED.
  const Proposal* Target(const Cell& cell) const;
  int64_t HighestVersion(const Cell& cell) const;
  int64_t HighestTerm(const Cell& cell) const { return MemberPeer::HighestTerm(MemberOf(cell)); }
  size_t size() const { return cells_.size(); }

 private:
  enum class Action : uint8_t {
    kDeliver,
    kConnect,
    kGiveUp,
    kEnter,
    kSkip,
    kTake,
    kOutcome,
    kDropOld,
    kClose,
    kLose,
    kCut,
    kKill,
    kReadKeeps
  };
  using Change = void (RankTable::*)(Cell&, int, RankStep&);

  uint32_t Keep(Cell cell);
  uint32_t Keep(Member member);
  const RankStep& Do(uint32_t cell, Action action, int argument, Change change);
  void OnDown(Cell& cell, const wire::DownMessage& message, RankStep& step);
  void Say(Cell& cell, std::vector<wire::UpMessage> messages);
  void SayGoodbye(Cell& cell);
  void Number(Cell& cell, int stream, uint32_t& message);

  void DoDeliver(Cell& cell, int arrival, RankStep& step);
  void DoConnect(Cell& cell, int number, RankStep& step);
  void DoGiveUp(Cell& cell, int, RankStep& step);
  void DoEnter(Cell& cell, int, RankStep& step);
  void DoSkip(Cell& cell, int, RankStep& step);
  void DoTake(Cell& cell, int, RankStep& step);
  void DoOutcome(Cell& cell, int outcome, RankStep& step);
  void DoDropOld(Cell& cell, int index, RankStep& step);
  void DoClose(Cell& cell, int number, RankStep& step);
  void DoLose(Cell& cell, int, RankStep& step);
  void DoCut(Cell& cell, int, RankStep& step);
  void DoKill(Cell& cell, int, RankStep& step);
  void DoReadKeeps(Cell& cell, int, RankStep& step);
  bool IsKeep(uint32_t message) const;

  Messages& messages_;
  const Mutant mutant_;
  Interned<Cell> cells_;
  Interned<Member> members_;
  absl::flat_hash_map<uint64_t, uint32_t> step_ids_;
  std::deque<RankStep> steps_;
  absl::flat_hash_map<uint64_t, uint32_t> up_ids_;
  std::deque<UpStep> ups_;
  absl::flat_hash_map<uint64_t, uint32_t> push_ids_;
};

}  // namespace eplb::explorer
