// Ranks of several runs that meet through a daemon, in any order: processes that come, come
// again, leave and are too late, daemons that restart between two answers, and calls that no rank
// would make. No answer has a blob of another launch id, or of two processes of one rank.
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/rpc/rendezvous.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input.h"

namespace eplb {
namespace {

constexpr int kMaxOperations = 300;
constexpr int32_t kWorldSize = 3;
constexpr int kRuns = 4;
constexpr size_t kMaxBytes = 4096;  // reached by some orders

// Runs 0 and 1 share an id, the others have their own.
std::string IdOf(int run) { return run < 2 ? "shared" : absl::StrCat("own-", run); }

// One process of a rank, as client/session/unary_calls.cc speaks.
struct Process {
  int run = 0;
  int32_t rank = 0;
  uint64_t nonce = 0;
  int32_t number = 0;  // number of its all-gather
  std::string token = {};
  std::string previous = {};
  bool waits = false;
  bool failed = false;
  char caller = 0;  // its address names the call

  std::string Blob() const { return absl::StrCat(IdOf(run), "/", nonce, "/", number); }
};

class World {
 public:
  explicit World(fuzz::Input input) : input_(input) {
    for (size_t at = 0; at < processes_.size(); ++at) {
      processes_[at].run = static_cast<int>(at) / kWorldSize;
      processes_[at].rank = static_cast<int32_t>(at) % kWorldSize;
      processes_[at].nonce = 1 + at;
    }
    Start();
  }

  void Run() {
    for (int i = 0; i < kMaxOperations && !input_.empty(); ++i) Operate();
    daemon_->FailAll(absl::UnavailableError("the daemon ends"));
    for (const Process& process : processes_) fuzz::Require(!process.waits, "a call has no answer");
  }

 private:
  void Start() {
    daemon_ = std::make_unique<Rendezvous>(Rendezvous::Limits{
        .deadline = absl::Seconds(30), .settle = absl::Seconds(1), .max_bytes = kMaxBytes});
  }

  void Operate() {
    switch (input_.Below(8)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Join(AnyProcess());
      case 4:
        now_ += absl::Milliseconds(1 << input_.Below(16));
        return daemon_->Expire(now_);
      case 5: {  // it is killed, and another process stands in for it in its run
        Process& process = AnyProcess();
        Leave(process);
        process = {.run = process.run, .rank = process.rank, .nonce = process.nonce + 100};
        return;
      }
      case 6:  // calls fail with the stream, and come again
        for (Process& process : processes_) Leave(process);
        return Start();
      default:
        return SayAnything();
    }
  }

  Process& AnyProcess() { return processes_[static_cast<size_t>(input_.Byte()) % kProcesses]; }

  void Leave(Process& process) {
    if (process.waits && daemon_->Leave(&process.caller)) process.waits = false;
  }

  void Join(Process& process) {
    if (process.failed) return;
    Leave(process);  // a client has one call at a time
    process.waits = true;
    daemon_->Join(
        {.job = "job",
         .launch_id = IdOf(process.run),
         .token = process.token,
         .number = process.number,
         .rank = process.rank,
         .world_size = kWorldSize,
         .nonce = process.nonce,
         .patience = absl::Seconds(20),
         .blob = process.Blob(),
         .previous = process.previous},
        &process.caller,
        [&process](const absl::StatusOr<Rendezvous::Result>& result) { OnAnswer(process, result); },
        now_);
  }

  static void OnAnswer(Process& process, const absl::StatusOr<Rendezvous::Result>& result) {
    fuzz::Require(std::exchange(process.waits, false), "a second answer to one call");
    if (!result.ok()) {
      fuzz::RequireOneLine(result.status());
      process.failed = !absl::IsUnavailable(result.status());
      return;
    }
    Check(process, **result);
    process.token = (*result)->token;
    process.previous = process.Blob();
    ++process.number;
  }

  static void Check(const Process& process, const Rendezvous::Answer& answer) {
    fuzz::Require(answer.blobs.size() == kWorldSize, "not one blob of each rank");
    fuzz::Require(answer.blobs[process.rank] == process.Blob(), "a rank's own blob is another's");
    const std::string id = absl::StrCat(IdOf(process.run), "/");
    const std::string number = absl::StrCat("/", process.number);
    std::map<int32_t, uint64_t> nonces;
    for (int32_t rank = 0; rank < kWorldSize; ++rank) {
      const std::string& blob = answer.blobs[rank];
      fuzz::Require(blob.starts_with(id), "ranks of two launch ids met");
      fuzz::Require(blob.ends_with(number), "blobs of two all-gathers");
      nonces[rank] = std::stoull(blob.substr(id.size()));
    }
    // AllGather 0 binds the processes that met; no other process takes part in the later ones.
    const std::string token = Rendezvous::TokenOf(IdOf(process.run), nonces);
    fuzz::Require(answer.token == token, "the token is not that of the processes that met");
    fuzz::Require(process.number == 0 || process.token == token, "another process took part");
  }

  // Any member, of a job that no rank above is of.
  void SayAnything() {
    Rendezvous::Member member{.job = "other",
                              .launch_id = std::string(input_.Bytes()),
                              .token = std::string(input_.Bytes()),
                              .number = input_.Byte() - 2,
                              .rank = input_.Byte() - 2,
                              .world_size = input_.Byte() - 2,
                              .nonce = input_.Byte(),
                              .patience = absl::Seconds(input_.Byte() - 2),
                              .blob = std::string(input_.Bytes()),
                              .previous = std::string(input_.Bytes())};
    strays_.push_back(std::make_unique<char>());
    daemon_->Join(
        std::move(member), strays_.back().get(),
        [](const absl::StatusOr<Rendezvous::Result>& result) {
          fuzz::RequireOneLine(result.status());
        },
        now_);
  }

  static constexpr size_t kProcesses = size_t{kRuns} * kWorldSize;

  fuzz::Input input_;
  absl::Time now_ = absl::UnixEpoch();
  std::array<Process, kProcesses> processes_;
  std::vector<std::unique_ptr<char>> strays_;
  std::unique_ptr<Rendezvous> daemon_;  // first to go: its calls are the members above
};

}  // namespace
}  // namespace eplb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eplb::World(eplb::fuzz::Input(eplb::fuzz::AsText(data, size))).Run();
  return 0;
}
