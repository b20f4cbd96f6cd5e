#include "tests/client/oracle/oracle_job.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "client/client_impl.h"
#include "placement/rank_grid.h"
#include "tests/client/oracle/expert_slots.h"
#include "tests/client/oracle/rank_barrier.h"
#include "tests/client/oracle/tiny_moe.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"

namespace eplb {
namespace {

constexpr int32_t kVoteEvery = 2;
constexpr int64_t kStagingBytes = 1 << 18;  // an expert of a layer has below 4 KiB

// Values that travel between the rank of a token and the rank of an expert, for one router choice.
struct Parcel {
  int32_t slot = -1;
  int32_t ep_group = 0;  // EP group of the pipeline stage that writes the results
  TokenVector input{};
  HiddenVector hidden{};
  TokenVector output{};
  TokenVector output_gradient{};
  TokenVector input_gradient{};
};
using Parcels = std::array<std::array<Parcel, kTopK>, kTokens>;

// State that the ranks share: the daemon, and the all-to-all as memory that is read and written
// between barriers.
class Job {
 public:
  explicit Job(const OracleOptions& options)
      : grid_(RankGrid::Make(
                  {.world_size = options.num_ranks,
                   .num_gpus = options.num_gpus == 0 ? options.num_ranks : options.num_gpus,
                   .pipeline_parallel_size = options.pipeline_parallel_size,
                   .expert_tensor_parallel = options.expert_tensor_parallel})
                  .value()),
        topology_(Topology::Make({.num_layers = kMoeLayers,
                                  .num_experts = kMoeExperts,
                                  .num_slots = kMoeExperts,
                                  .num_gpus = grid_.num_gpus()})
                      .value()),
        barrier_(options.num_ranks),
        parcels_(kMoeLayers),
        losses_(kOracleSteps * kTokens) {
    if (options.migrate) daemon_ = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{});
  }

  std::string endpoint() const { return daemon_ == nullptr ? "" : daemon_->endpoint(); }
  const RankGrid& grid() const { return grid_; }
  RankBarrier& barrier() { return barrier_; }
  Parcels& parcels(int32_t layer) { return parcels_[static_cast<size_t>(layer)]; }
  float& loss(int64_t step, int32_t token) {
    return losses_[static_cast<size_t>(step * kTokens + token)];
  }

  // Returns when every rank is PREPARED, so that the switch comes at the next vote.
  void Propose() {
    const int32_t ranks = grid_.world_size();
    if (version_ == 0) daemon_->WaitForRanks(ranks);
    const Placement target = version_ % 2 == 0 ? RandomPlacement(random_, topology_) : first_;
    daemon_->SendAll(ProposeTo(Running(version_, current_), target, version_ + 1, 1));
    ++version_;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      daemon_->WaitFor<wire::Prepared>(rank, static_cast<int>(version_));
    }
    current_ = target;
  }

  std::vector<float> losses() const { return losses_; }

 private:
  const RankGrid grid_;
  const Topology topology_;
  const Placement first_ = Placement::Static(topology_);
  Placement current_ = first_;
  int64_t version_ = 0;
  std::mt19937 random_{20261121};
  std::unique_ptr<ScriptedDaemon> daemon_;
  RankBarrier barrier_;
  std::vector<Parcels> parcels_;  // [layers]
  std::vector<float> losses_;     // [steps, tokens]
};

class Rank {
 public:
  Rank(Job& job, const OracleOptions& options, std::unique_ptr<Client> client, int32_t rank)
      : job_(job),
        migrate_(options.migrate),
        check_(options.check),
        client_(std::move(client)),
        rank_(rank),
        pipeline_stage_(job.grid().PipelineStageOf(RankId{rank})),
        ep_groups_(job.grid().num_ep_groups() / job.grid().pipeline_parallel_size()),
        ep_group_(job.grid().EpGroupOf(RankId{rank}) % ep_groups_),
        slots_(client_->placement().num_local_slots),
        first_token_(rank * (kTokens / options.num_ranks)),
        tokens_(static_cast<size_t>(kTokens / options.num_ranks)),
        gates_(kMoeLayers) {}

  absl::Status Register(std::string_view forgotten) {
    slots_.Initialise(client_->placement());
    std::vector<ExpertTensorView> tensors = slots_.Tensors(forgotten);
    std::erase_if(tensors, [this](const ExpertTensorView& of) { return !Holds(of.layer); });
    return client_->RegisterExperts(tensors);
  }

  // A rank that fails leaves the barriers, so that the others end too.
  absl::Status Run() {
    for (int64_t step = 0; step < kOracleSteps; ++step) {
      if (absl::Status status = Step(step); !status.ok()) {
        job_.barrier().Leave();
        return status;
      }
    }
    client_->Close("finished");
    return absl::OkStatus();
  }

  int64_t num_switches() const { return num_switches_; }
  absl::Status Collect(std::vector<std::string>& experts) {
    for (int32_t layer = 0; layer < kMoeLayers; ++layer) {
      if (!Holds(layer)) continue;
      for (int32_t slot = 0; slot < client_->placement().num_local_slots; ++slot) {
        const int32_t cell = layer * kMoeExperts + ExpertIn(client_->placement(), layer, slot);
        std::string& of_ep_groups = experts[static_cast<size_t>(cell)];
        const std::string bytes = slots_.Bytes(layer, slot);
        if (!of_ep_groups.empty() && of_ep_groups != bytes)
          return absl::DataLossError("ep_groups differ");
        of_ep_groups = bytes;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Step(int64_t step) {
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = InputOf(step, TokenAt(i));
    for (int32_t layer = 0; layer < kMoeLayers; ++layer) {
      EPLB_RETURN_IF_ERROR(Dispatch(layer));
      RunExperts(layer);
      Combine(layer);
    }
    BeginBackward(step);
    for (int32_t layer = kMoeLayers - 1; layer >= 0; --layer) {
      DispatchGradients(layer);
      RunExpertsBackward(layer);
      CombineGradients(layer);
    }
    if (migrate_ && step % 4 == 2) {  // a vote is at this step or the next
      job_.barrier().Meet();
      if (rank_ == 0) job_.Propose();
      job_.barrier().Meet();
    }
    EPLB_ASSIGN_OR_RETURN(const BoundaryResult result, client_->StepBoundary(step));
    num_switches_ += result.switched ? 1 : 0;
    if (!check_ || step != kOracleSteps / 2) return absl::OkStatus();
    return client_->CheckExperts(
        [this](int32_t layer, int32_t slot) { return slots_.TrainACopy(layer, slot); });
  }

  bool Holds(int32_t layer) const {
    return layer % job_.grid().pipeline_parallel_size() == pipeline_stage_;
  }
  int32_t TokenAt(size_t i) const { return first_token_ + static_cast<int32_t>(i); }
  std::array<Parcel, kTopK>& ParcelsOf(int32_t layer, size_t i) {
    return job_.parcels(layer)[static_cast<size_t>(TokenAt(i))];
  }

  absl::Status Dispatch(int32_t layer) {
    const PlacementView& placement = client_->placement();
    std::vector<int64_t> counts(kMoeExperts);
    gates_[static_cast<size_t>(layer)].clear();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const Route route = RouteToken(layer, tokens_[i]);
      gates_[static_cast<size_t>(layer)].push_back(route.gates);
      for (size_t k = 0; k < kTopK; ++k) {
        ++counts[static_cast<size_t>(route.experts[k])];
        const int32_t replicas = (layer * kMoeExperts + route.experts[k]) * placement.max_replicas;
        ParcelsOf(layer, i)[k] = {
            .slot = placement.logical_to_physical_map[static_cast<size_t>(replicas)],
            .ep_group = TokenAt(i) % ep_groups_,
            .input = tokens_[i]};
      }
    }
    if (Holds(layer)) EPLB_RETURN_IF_ERROR(client_->Record(layer, counts));
    job_.barrier().Meet();
    return absl::OkStatus();
  }

  // The parcels for a local slot in the order of their tokens, wherever these come from; none of a
  // layer that other ranks hold.
  template <class Visitor>
  void VisitParcels(int32_t layer, int32_t local_slot, const Visitor& visitor) {
    const int32_t slot = client_->placement().first_local_slot + local_slot;
    if (!Holds(layer)) return;
    for (auto& choices : job_.parcels(layer)) {
      for (Parcel& parcel : choices) {
        if (parcel.slot == slot) visitor(parcel);
      }
    }
  }

  void RunExperts(int32_t layer) {
    for (int32_t slot = 0; slot < client_->placement().num_local_slots; ++slot) {
      VisitParcels(layer, slot, [&](Parcel& parcel) {
        if (parcel.ep_group != ep_group_) return;
        parcel.output = Forward(slots_.At(layer, slot), parcel.input, parcel.hidden);
      });
    }
    job_.barrier().Meet();
  }

  // Each layer adds its experts' outputs to the token.
  void Combine(int32_t layer) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      for (size_t k = 0; k < kTopK; ++k) {
        const float gate = gates_[static_cast<size_t>(layer)][i][k];
        const Parcel& parcel = ParcelsOf(layer, i)[k];
        for (size_t w = 0; w < kWidth; ++w) tokens_[i][w] += gate * parcel.output[w];
      }
    }
  }

  // From here on tokens_ holds gradients.
  void BeginBackward(int64_t step) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const TokenVector target = TargetOf(InputOf(step, TokenAt(i)));
      float& loss = job_.loss(step, TokenAt(i));
      for (size_t w = 0; w < kWidth; ++w) {
        tokens_[i][w] -= target[w];
        loss += tokens_[i][w] * tokens_[i][w] / 2;
      }
    }
  }

  void DispatchGradients(int32_t layer) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      for (size_t k = 0; k < kTopK; ++k) {
        const float gate = gates_[static_cast<size_t>(layer)][i][k];
        Parcel& parcel = ParcelsOf(layer, i)[k];
        for (size_t w = 0; w < kWidth; ++w) parcel.output_gradient[w] = gate * tokens_[i][w];
      }
    }
    job_.barrier().Meet();
  }

  void RunExpertsBackward(int32_t layer) {
    for (int32_t slot = 0; slot < client_->placement().num_local_slots; ++slot) {
      const ExpertRow row = slots_.At(layer, slot);
      std::vector<float> gradient(kParameters);
      bool has_tokens = false;
      VisitParcels(layer, slot, [&](Parcel& parcel) {
        // Each EP group adds up all tokens, in their order: so does a sum over EP groups of exact
        // numbers.
        has_tokens = true;
        const TokenVector of_input =
            Backward(row, parcel.input, parcel.hidden, parcel.output_gradient, gradient);
        if (parcel.ep_group == ep_group_) parcel.input_gradient = of_input;
      });
      if (has_tokens) Update(row, gradient);
    }
    job_.barrier().Meet();
  }

  void CombineGradients(int32_t layer) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      for (const Parcel& parcel : ParcelsOf(layer, i)) {
        for (size_t w = 0; w < kWidth; ++w) tokens_[i][w] += parcel.input_gradient[w];
      }
    }
  }

  Job& job_;
  const bool migrate_;
  const bool check_;
  const std::unique_ptr<Client> client_;
  const int32_t rank_;
  const int32_t pipeline_stage_;
  const int32_t ep_groups_;  // EP groups of a pipeline stage
  const int32_t ep_group_;   // among them
  ExpertSlots slots_;
  const int32_t first_token_;
  std::vector<TokenVector> tokens_;                           // tokens of this rank
  std::vector<std::vector<std::array<float, kTopK>>> gates_;  // [layers][tokens]
  int64_t num_switches_ = 0;
};

ClientOptions ClientOptionsOf(const OracleOptions& options, const Job& job, int32_t rank) {
  ClientOptions client;
  client.job = "oracle";
  client.run_id = "run-0";
  client.rank = rank;
  client.world_size = options.num_ranks;
  client.endpoint = job.endpoint();
  client.num_layers = kMoeLayers;
  client.num_experts = kMoeExperts;
  client.num_slots = kMoeExperts;
  client.num_gpus = job.grid().num_gpus();
  client.pipeline_parallel_size = options.pipeline_parallel_size;
  client.expert_tensor_parallel = options.expert_tensor_parallel;
  client.vote_every = kVoteEvery;
  client.state_placement = options.state_placement;
  client.transport = "host";
  client.vote_deadline = absl::Seconds(30);
  return client;
}

}  // namespace

Trained Train(const OracleOptions& options) {
  Job job(options);
  std::vector<AllGather> all_gathers = MakeThreadAllGathers(options.num_ranks);
  Transports transports(static_cast<size_t>(options.num_ranks));
  if (options.migrate) transports = options.transports(options.num_ranks, kStagingBytes);
  std::vector<std::unique_ptr<Rank>> ranks(static_cast<size_t>(options.num_ranks));
  std::vector<absl::Status> statuses(ranks.size());
  RunRanks(options.num_ranks, [&](int32_t r) {
    const auto i = static_cast<size_t>(r);
    auto parts = PrepareClient(ClientOptionsOf(options, job, r), all_gathers[i]);
    statuses[i] = parts.status();
    if (!parts.ok()) return;
    parts->transport = std::move(transports[i]);
    auto impl = std::make_unique<Client::Impl>(*std::move(parts));
    ranks[i] = std::make_unique<Rank>(job, options, std::make_unique<Client>(std::move(impl)), r);
    statuses[i] = ranks[i]->Register(options.forgotten);
  });
  Trained trained;
  for (const absl::Status& status : statuses) trained.status.Update(status);
  if (!trained.status.ok()) return trained;
  RunRanks(options.num_ranks, [&](int32_t r) {
    const auto i = static_cast<size_t>(r);
    statuses[i] = ranks[i]->Run();
  });
  for (const absl::Status& status : statuses) trained.status.Update(status);
  trained.num_switches = ranks[0]->num_switches();
  trained.losses = job.losses();
  trained.experts.resize(size_t{kMoeLayers} * kMoeExperts);
  for (const auto& rank : ranks) trained.status.Update(rank->Collect(trained.experts));
  return trained;
}

}  // namespace eplb
