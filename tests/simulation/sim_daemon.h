// A daemon: the real core, run as server/runner does, on a simulated disk and a monotonic clock of
// its own that begins anywhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "client/session/member.h"
#include "server/core/core.h"
#include "tests/simulation/context.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/stream.h"
#include "tests/simulation/truth.h"

namespace eplb::simulation {

struct Disk {
  int64_t term = 0;
  std::map<std::string, core::StoredJob> jobs;
  bool works = true;
  std::map<std::string, std::map<int64_t, v1::Plan>> plans = {};  // by job and number
};

class SimDaemon {
 public:
  SimDaemon(Context* context, Truth* truth, Promises* promises, std::string name,
            core::Config config);

  // Reads the disk and serves; does nothing while the disk does not work.
  void Start();
  // Gone at once.
  void Kill();
  // Kill in a coming decision, between two of its effects.
  void KillSoon() { kill_after_effects_ = context_.Below(12); }
  void Freeze(absl::Duration duration);
  void Drain(absl::Duration grace);
  // False when the daemon does not listen.
  bool Accept(Stream* stream);

  bool is_frozen() const { return context_.now() < frozen_until_; }
  bool serves() const { return core_ != nullptr; }
  // Starts on another store from now on. REQUIRES: it does not serve.
  void ReplaceDisk(Disk other);
  // An operator pauses the job, or resumes it; the promise holds once the daemon answered.
  void Ask(const std::string& job, bool pause);
  // Answers GetLeader: the term with which it leads this run; 0 if no rank of it is connected.
  int64_t Leads(const std::string& job, const std::string& run_id) const;
  // Ok when IDLE with all ranks of this run and this placement, in the store too; else says what
  // is not so.
  absl::Status CheckIdle(const std::string& job, const std::string& run_id,
                         const RunningPlacement& running) const;
  bool IsQuarantined(const std::string& job) const;
  int64_t term() const { return core_->term(); }

  Disk disk;

 private:
  struct Stuck {
    std::string state;
    bool recorded = false;
  };

  absl::Time Clock() const { return context_.now() + clock_offset_; }
  // When the process is running again.
  void Soon(std::function<void()> what);
  void Tick();
  void OnEvent(core::Event event);
  // False when the rest of the decision is dropped; `failed` says why.
  bool Execute(const core::Effect& effect, std::optional<core::StoreFailed>& failed);
  void Send(const core::Send& send);
  void CheckTerm(int64_t term, const std::string& job);
  void CheckStored(const wire::Propose& propose, const std::string& job);
  void OnReply(const core::Reply& reply);
  void NoteQuarantine();
  void NoteWelcomed(const core::Event& event);
  void Solve(const core::Solve& solve);
  void CheckStuck();

  // Checks that the core shows what the ranks did.
  void CheckShown(const core::Decision& decision);

  Context& context_;
  Truth& truth_;
  Promises& promises_;
  const std::string name_;
  const core::Config config_;
  std::unique_ptr<core::Core> core_;
  int64_t process_ = 0;  // starts so far
  absl::Duration clock_offset_;
  absl::Time frozen_until_ = absl::InfinitePast();
  int kill_after_effects_ = -1;
  core::SessionId last_session_ = 0;
  std::map<core::SessionId, Stream*> streams_;
  std::map<core::SessionId, std::string> jobs_;            // jobs of sessions that said Hello
  int64_t highest_term_said_ = 0;                          // in a Hello
  std::map<int64_t, std::pair<std::string, bool>> asked_;  // by ticket: job, whether to pause
  int64_t last_ticket_ = 0;
  std::map<std::string, bool> stuck_;  // job: said so in its state
};

}  // namespace eplb::simulation
