#include "tests/support/cuda_emulator/launch_order.h"

#include <deque>
#include <map>

#include "absl/strings/str_cat.h"

namespace eplb::cuda_emulator {
namespace {

// Blocks begin .. end - 1.
struct Blocks {
  uint32_t begin = 0;
  uint32_t end = 0;

  bool Has(uint32_t block) const { return block >= begin && block < end; }
};

struct LaunchRecord {
  std::string kernel;
  Blocks blocks;
  Blocks running;         // earlier blocks that may run when this launch begins
  Blocks running_behind;  // the same after it has waited for its predecessor
  bool has_waited = false;
};

struct Launches {
  std::deque<LaunchRecord> latest{{.blocks = {0, 1}}};
  std::map<cudaStream_t, LaunchRecord> by_stream;  // latest, unless other work followed
  cudaStream_t stream = nullptr;                   // stream of the latest
};

Launches& TheLaunches() {
  static auto* const launches = new Launches();
  return *launches;
}

}  // namespace

uint32_t BeginLaunch(std::string_view kernel, cudaStream_t stream, bool programmatic,
                     uint32_t num_blocks) {
  constexpr size_t kKept = 8;
  Launches& all = TheLaunches();
  const uint32_t first = all.latest.back().blocks.end;
  LaunchRecord launch{.kernel = std::string(kernel), .blocks = {first, first + num_blocks}};
  const auto before = all.by_stream.find(stream);
  if (programmatic && before != all.by_stream.end()) {
    const LaunchRecord& predecessor = before->second;
    // The predecessor may let this launch begin before it has waited itself.
    const Blocks& older = predecessor.running;
    launch.running = {older.begin < older.end ? older.begin : predecessor.blocks.begin, first};
    if (!predecessor.has_waited) launch.running_behind = older;
  }
  all.latest.push_back(launch);
  if (all.latest.size() > kKept) all.latest.pop_front();
  all.by_stream[stream] = launch;
  all.stream = stream;
  return first;
}

void NoteWait() { TheLaunches().by_stream[TheLaunches().stream].has_waited = true; }

void EndSequence(cudaStream_t stream) { TheLaunches().by_stream.erase(stream); }

bool IsOfEarlierLaunch(uint32_t block) { return block < TheLaunches().latest.back().blocks.begin; }

bool MayStillRun(uint32_t block, bool waited) {
  const LaunchRecord& launch = TheLaunches().latest.back();
  return (waited ? launch.running_behind : launch.running).Has(block);
}

std::string NameOfBlock(uint32_t block) {
  for (const LaunchRecord& launch : TheLaunches().latest) {
    if (!launch.blocks.Has(block)) continue;
    return absl::StrCat("block ", block - launch.blocks.begin, " of ", launch.kernel);
  }
  return "an earlier block";
}

}  // namespace eplb::cuda_emulator
