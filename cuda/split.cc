#include "cuda/split.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

// One thread as the block of WriteLayer.
struct OneThreadBlock {
  int32_t thread = 0;
  int32_t num_threads = 1;
  static void Sync() {}
};

// One thread that finds the steps of GPUs as a warp does.
struct OneLane : OneThread {
  static constexpr bool kKeepsSteps = false;
};

// Calls `work` with a GpuSet that is wide enough.
template <class Work>
auto ForWords(const SplitShape& shape, const Work& work) {
  if (shape.num_gpus <= GpuSet<1>::kMaxGpus) return work(GpuSet<1>());
  return work(GpuSet<2>());
}

template <int kWords>
void PackLayer(const SplitTables& from, int32_t index, Carver& carver) {
  const LayerTables<kWords> to = CarveTables<kWords>(from.shape, carver);
  const SplitLayerTables& sizes = from.layers[index];
  const int32_t* const begin = from.tables + sizes.begin;
  const int64_t end =
      index + 1 < from.shape.num_layers ? from.layers[index + 1].begin : from.num_tables;
  *to.header = {.sizes = sizes,
                .margins = from.margins,
                .equal_speeds = from.equal_speeds ? 1 : 0,
                .refuses = 0};
  std::copy_n(from.speeds, from.shape.num_gpus, to.speeds);
  FindHolders(from.Layer(index), to.holders);
  std::transform(begin, from.tables + end, to.numbers,
                 [](int32_t number) { return static_cast<uint16_t>(number); });
  const PackedSplitLayer layer = LayerAt<uint16_t>(to.numbers, sizes, from.shape);
  uint16_t* const slots = to.numbers + (layer.replica_slot - to.numbers);
  for (int32_t expert = 0; expert < from.shape.num_experts; ++expert) {
    std::sort(slots + layer.first_slot[expert], slots + layer.first_slot[expert + 1]);
  }
}

template <int kWords>
void SplitAll(const SplitArgs& args) {
  const int64_t bytes =
      CarvedBytes([&](Carver& carver) { (void)CarveMemory<kWords>(args, carver, false); });
  std::vector<TableUnit> units(static_cast<size_t>(bytes) / sizeof(TableUnit) + 1);
  for (int32_t index = 0; index < args.num_layers; ++index) {
    Carver carver(reinterpret_cast<std::byte*>(units.data()));
    const auto memory = CarveMemory<kWords>(args, carver, /*in_registers=*/false);
    const int64_t layer = args.first_layer + index;
    std::copy_n(args.tables + layer * memory.num_table_bytes, memory.num_table_bytes,
                memory.table_bytes);
    SumSources(args, index, memory, 0, 1);
    SolveLayer(args, index, memory, NumSourceGroups(args, 1), OneLane());
    WriteLayer(args, index, memory, OneThreadBlock());
  }
}

}  // namespace

int64_t SplitTableBytes(const SplitShape& shape) {
  return shape.num_layers * ForWords(shape, [&](auto set) {
           return CarvedBytes([&](Carver& carver) {
             (void)CarveTables<sizeof(set) / sizeof(uint64_t)>(shape, carver);
           });
         });
}

absl::Status PackSplitTables(const SplitTables& tables, std::span<std::byte> bytes) {
  EPLB_RETURN_IF_ERROR(CheckSplitShape(tables.shape));
  Carver carver(bytes.data());
  for (int32_t layer = 0; layer < tables.shape.num_layers; ++layer) {
    ForWords(tables.shape,
             [&](auto set) { PackLayer<sizeof(set) / sizeof(uint64_t)>(tables, layer, carver); });
  }
  return absl::OkStatus();
}

void PackRefusal(const SplitShape& shape, std::span<std::byte> bytes) {
  Carver carver(bytes.data());
  ForWords(shape, [&](auto set) {
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      *CarveTables<sizeof(set) / sizeof(uint64_t)>(shape, carver).header = {.refuses = 1};
    }
  });
}

int64_t SplitSharedBytes(const SplitArgs& args) {
  return ForWords(args.shape, [&](auto set) {
    return CarvedBytes([&](Carver& carver) {
      (void)CarveMemory<sizeof(set) / sizeof(uint64_t)>(args, carver, /*in_registers=*/true);
    });
  });
}

absl::Status CheckSplitShape(const SplitShape& shape) {
  if (shape.num_gpus < 1 || shape.num_gpus > kMaxSplitGpus) {
    return InvalidInput("split over ", shape.num_gpus, " GPUs by the kernel, expected 1..",
                        kMaxSplitGpus, "; BatchSplitter splits over more on the CPU");
  }
  const int64_t bytes = SplitSharedBytes({.shape = shape});
  if (bytes > kMaxSplitSharedBytes) {
    return InvalidInput("split of ", shape.num_experts, " experts in ", shape.num_slots,
                        " slots by the kernel needs ", bytes, " bytes of shared memory, it has ",
                        kMaxSplitSharedBytes, "; BatchSplitter splits them on the CPU");
  }
  return absl::OkStatus();
}

absl::Status CheckSplitArgs(const SplitArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckSplitShape(args.shape));
  if (args.first_layer < 0 || args.num_layers < 0 ||
      args.num_layers > args.shape.num_layers - args.first_layer) {
    return InvalidInput("split of ", args.num_layers, " layers from layer ", args.first_layer,
                        " on: they are not all among ", args.shape.num_layers, " layers");
  }
  if (args.num_sources < 1 || args.source < 0 || args.source >= args.num_sources) {
    return InvalidInput("source ", args.source, " of ", args.num_sources,
                        " sources, expected one of 1 or more");
  }
  const int32_t num_gpus = args.shape.num_gpus;
  if (args.own != nullptr && (args.num_sources != num_gpus || args.gpus_of_node < 1 ||
                              num_gpus % args.gpus_of_node != 0)) {
    return InvalidInput("own quotas of one of ", args.num_sources, " sources on nodes of ",
                        args.gpus_of_node, " GPUs, expected a source for each of ", num_gpus,
                        " GPUs, in whole nodes");
  }
  if (args.num_layers == 0) return absl::OkStatus();
  if (args.tables == nullptr || args.counts == nullptr || args.quotas == nullptr ||
      args.refused == nullptr) {
    return InvalidInput("split of ", args.num_layers,
                        " layers needs tables, counts, quotas and refused, one of them is null");
  }
  return absl::OkStatus();
}

absl::Status SplitOnHost(const SplitArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckSplitArgs(args));
  ForWords(args.shape, [&](auto set) { SplitAll<sizeof(set) / sizeof(uint64_t)>(args); });
  return absl::OkStatus();
}

}  // namespace eplb::cuda
