// All successors of one state.
#pragma once

#include <functional>
#include <string>

#include "tests/simulation/explorer/world.h"

namespace eplb::explorer {

struct Model::Expansion {
  Model& model;
  std::function<void(Successor)> visit;
  const wire::UpMessage* heard = nullptr;  // message of the current turn; null for others
  int64_t term_before = 0;  // term of the job, in the daemon, before the current turn
  bool told_apart = false;  // a rank's number is its own: no turn is taken in another order

  void Run(const World& world);

  // ---- ranks ----
  void RankMoves(const World& world, int run, int rank);
  void Deliver(const World& world, Step step);
  // Takes a fault out of what is left; false where none may be.
  static bool MayDisorder(World& world) { return world.left.disorder && --world.left.faults >= 0; }
  void Connect(const World& world, Step step);
  void Votes(const World& world, Step step);
  void Enter(const World& world, Step step);
  bool MayEnter(const World& world, int run, const Cell& cell) const;
  // Every rank waits in the vote: all ways in which it can come out.
  void Complete(const World& world, const Step& step);
  void SetOutcomes(const World& world, Step step, const std::array<Pc, kRanks>& outcomes,
                   const char* how);
  std::string CheckVote(const World& world, int run, bool agreed) const;

  // ---- daemon ----
  void UpMoves(const World& world, int run, int rank);
  void Hear(const World& world, Step step);
  void OldEnds(const World& world, Step step);
  void Turn(const World& world, const Turned& turned, Step step);
  // For a turn that treats ranks differently by their numbers: once for every order of the ranks.
  void TurnInEveryOrder(const World& world, SessionName session, uint32_t message, Step step);
  // Returns true if the turn of renamed ranks is the turn with its ranks renamed.
  bool IsSymmetric(const World& world, const Turned& turned, SessionName session,
                   uint32_t message) const;
  // A run whose steps advance may only be replaced by one that owned the job later.
  std::string CheckReplacing(const World& before, World& after, const Step& step) const;
  std::string NoteOwner(World& world) const;
  int64_t KnownTerm(const World& world) const;  // the highest that a rank or the store knows
  std::string Execute(World& world, const CoreEffect& effect) const;
  // All ways in which it starts again.
  void Crash(const World& world, Step step);
  void StartAgain(World world, const Stored& stored, const Step& step);
  // Whatever the store forgets, some rank of the newest run has heard of every version.
  bool RanksRemember(const World& world) const;

  // ---- the rest ----
  void DaemonMoves(const World& world);
  void StartRun(const World& world);
  void StartRunBeside(const World& world);
  void EmitRun(World world, Move move);
  void Emit(World world, Step step, std::string violation = "");
  void EmitRank(const World& world, Step step, const RankStep& rank_step);
};

}  // namespace eplb::explorer
