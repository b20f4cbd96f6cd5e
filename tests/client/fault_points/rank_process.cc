#include "tests/client/fault_points/rank_process.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/client_impl.h"
#include "tests/client/fault_points/guarded_memory.h"
#include "tests/client/fault_points/rows.h"
#include "tests/client/fault_points/striker.h"
#include "tests/client/session/proposals.h"

namespace eplb {
namespace {

constexpr int32_t kLayers = 2;
constexpr char kSecret[] = "the secret of a job of processes";

ClientOptions OptionsOf(const JobSpec& spec, int32_t rank) {
  ClientOptions options;
  options.run_id = "run-0";
  options.rank = rank;
  options.world_size = spec.world_size;
  options.num_layers = kLayers;
  options.num_experts = 2 * spec.world_size;
  options.num_slots = 2 * spec.world_size;
  options.num_gpus = spec.world_size;
  options.vote_every = 1;
  options.transport = "host";
  options.start_deadline = absl::Seconds(30);
  options.vote_deadline = spec.vote_deadline;
  options.transfer_deadline = spec.transfer_deadline;
  return options;
}

// Every expert of both layers goes to another GPU: one slot of each to the next GPU, the other one
// to that after it, so that with three ranks or more a rank has two peers each way.
Placement Turned(const Placement& placement) {
  const int32_t slots = placement.topology().num_slots();
  std::vector<LayerPlacement> layers;
  for (int32_t layer = 0; layer < placement.topology().num_layers(); ++layer) {
    const LayerPlacement before = placement.Layer(LayerId{layer});
    LayerPlacement& turned = layers.emplace_back(before);
    for (int32_t slot = 0; slot < slots; ++slot) {
      const int32_t away = slot % 2 == 0 ? 2 : 4 % slots == 0 ? 2 : 4;
      turned.physical_to_logical[static_cast<size_t>((slot + away) % slots)] =
          before.physical_to_logical[static_cast<size_t>(slot)];
    }
  }
  return placement.WithLayers(layers).value();
}

class RankBody {
 public:
  RankBody(const JobSpec& spec, int32_t rank, SharedWorld& world)
      : spec_(spec),
        rank_(rank),
        all_gather_(MakeSharedAllGather(world, rank, spec.world_size)),
        journal_(world.journals[static_cast<size_t>(rank)]),
        memory_(kLayers, 2),
        striker_(spec.fault, rank == spec.fault.victim, journal_, memory_) {}

  void Run() {
    if (const absl::Status started = Start(); !started.ok()) {
      return SetText(journal_.failure, started.ToString());
    }
    memory_.Train(client_->placement(), -1);
    bool goes_on = true;
    for (int64_t step = 0; goes_on && step < spec_.max_steps; ++step) {
      goes_on = Step(step) && num_commits_ < spec_.num_commits;
    }
    // The client's end may wait for peers as well.
    (void)Timed(spec_.max_steps, [this] {
      client_->Close("finished");
      client_.reset();
      return absl::StatusOr<BoundaryResult>(BoundaryResult{});
    });
    journal_.finished = true;
  }

 private:
  absl::Status Start() {
    EPLB_ASSIGN_OR_RETURN(ClientParts parts, PrepareClient(OptionsOf(spec_, rank_), all_gather_));
    EPLB_ASSIGN_OR_RETURN(parts.transport, MakeRows(spec_, rank_, kSecret, parts.setup.all_gather));
    parts.control = MakeStrikingControl(std::move(parts.control), striker_);
    parts.transport = MakeStrikingTransport(std::move(parts.transport), striker_);
    auto impl = std::make_unique<Client::Impl>(std::move(parts));
    impl_ = impl.get();
    client_ = std::make_unique<Client>(std::move(impl));
    running_ = Running(0, Placement::Static(TopologyOf(spec_)));
    return client_->RegisterExperts(memory_.Tensors());
  }

  static Topology TopologyOf(const JobSpec& spec) {
    return Topology::Make({.num_layers = kLayers,
                           .num_experts = 2 * spec.world_size,
                           .num_slots = 2 * spec.world_size,
                           .num_gpus = spec.world_size})
        .value();
  }

  // Returns true if another step follows.
  bool Step(int64_t step) {
    const PlacementView& view = client_->placement();
    const int32_t index = journal_.num_steps;
    StepRecord& record = journal_.steps[static_cast<size_t>(index)];
    record.step = step;
    record.version = view.version;
    SetText(record.digest, view.digest);
    record.wrong_bytes = memory_.CountWrong(view, step - 1);
    journal_.num_steps = index + 1;
    memory_.Train(view, step);
    if (step % 2 == 1) Propose(step);
    const absl::StatusOr<BoundaryResult> result =
        Timed(step, [this, step] { return client_->StepBoundary(step); });
    journal_.ended = !result.ok();
    if (!result.ok()) return false;
    if (!result->switched) return true;
    running_ = Running(result->version, Turned(*running_.placement));
    ++num_commits_;
    striker_.At(Point::kAfterCommit, static_cast<uint64_t>((step + 1) / 2));
    return true;
  }

  // The version says at which step, so that it rises where chunks were dropped.
  void Propose(int64_t step) {
    impl_->Tell(ProposeTo(running_, Turned(*running_.placement), step, /*term=*/1));
  }

  absl::StatusOr<BoundaryResult> Timed(
      int64_t step, const std::function<absl::StatusOr<BoundaryResult>()>& call) {
    const absl::Time begin = MonotonicNow();
    const absl::StatusOr<BoundaryResult> result = call();
    const int32_t index = journal_.num_calls;
    CallRecord& record = journal_.calls[static_cast<size_t>(index)];
    record.step = step;
    record.seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
    record.code = static_cast<int32_t>(result.status().code());
    record.switched = result.ok() && result->switched;
    SetText(record.text, result.ok() ? result->reason : std::string(result.status().message()));
    journal_.num_calls = index + 1;
    return result;
  }

  const JobSpec& spec_;
  const int32_t rank_;
  const AllGather all_gather_;
  Journal& journal_;
  GuardedMemory memory_;
  Striker striker_;
  std::unique_ptr<Client> client_;
  Client::Impl* impl_ = nullptr;  // implementation of client_
  RunningPlacement running_;
  int32_t num_commits_ = 0;
};

}  // namespace

std::string JobSpec::Name() const {
  const char* over = rows == Rows::kShared ? "shared memory" : rows == Rows::kTcp ? "tcp" : "nccl";
  return absl::StrCat(world_size, " ranks, ", over, ": ", fault.Name());
}

void RunRank(const JobSpec& spec, int32_t rank, SharedWorld& world) {
  RankBody(spec, rank, world).Run();
}

}  // namespace eplb
