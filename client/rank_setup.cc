#include "client/rank_setup.h"

#include <random>

#include "client/options.h"
#include "client/session/log_line.h"

namespace eplb {
namespace {

uint64_t DrawNonce() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

ExecutorOptions RankSetup::MakeExecutorOptions() const {
  return {.topology = topology,
          .gpu = gpu(),
          .ep_group = EpGroup(),
          .layers = grid.pipeline_parallel_size() == 1 ? LayersHeld::kAll : LayersHeld::kSome,
          .layers_per_chunk = options.layers_per_chunk};
}

RowMoverOptions RankSetup::MakeRowMoverOptions(const JobNeeds& needs) const {
  RowMoverOptions mover{.transport = {.rank = rank(),
                                      .world_size = options.world_size,
                                      .staging_bytes = needs.staging_bytes,
                                      .bind_address = options.bind_address,
                                      .secret = secret,
                                      .connect_timeout = options.start_deadline},
                        .name = options.transport,
                        .memory = needs.memory,
                        .ep_group = EpGroup(),
                        .beside_steps = options.ahead,
                        .nccl = nccl};
  mover.transport.peers = mover.ep_group;
  // Every rank learns the same reasons.
  if (options.rank == 0) mover.transport.on_note = &LogLine;
  return mover;
}

wire::Hello RankSetup::MakeHello(const JobNeeds& needs, const TransportReport& transport) const {
  wire::Hello hello;
  hello.job = options.job;
  hello.run_id = run_id;
  hello.nonce = DrawNonce();
  hello.rank = options.rank;
  hello.world_size = options.world_size;
  hello.gpu = gpu().value;
  hello.ep_group = grid.EpGroupOf(rank());
  hello.pipeline_parallel_size = grid.pipeline_parallel_size();
  hello.expert_tensor_parallel = options.expert_tensor_parallel;
  hello.shape = ShapeOf(options);
  hello.step = options.first_step - 1;
  hello.vote_every = options.vote_every;
  hello.report_every = options.report_every;
  hello.weight_bytes = needs.bytes.weight;
  hello.state_bytes = needs.bytes.state;
  hello.staging_rows = topology.max_slots_per_gpu();
  hello.staging_layers = needs.staging_layers;
  hello.library_version = kLibraryVersion;
  hello.take_over = TakesOver(options);
  hello.reduce = options.reduce == "root" ? wire::Reduce::kRoot : wire::Reduce::kRank;
  hello.split = SplitOf(options);
  hello.transport = {.name = transport.name,
                     .fallback_reason = transport.fallback_reason,
                     .device = transport.device,
                     .device_name = transport.device_name,
                     .nccl_version = transport.nccl_version,
                     .nccl_library = transport.nccl_library,
                     .settings = {}};
  for (const auto& [name, value] : transport.settings) {
    hello.transport.settings.push_back({.name = name, .value = value});
  }
  return hello;
}

}  // namespace eplb
