#include "cuda/split.h"

#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

constexpr int64_t kSplitSharedBytes =
    int64_t{48} * 1024;  // shared memory of a block on every device by default

// Offsets of the arrays, one after the other.
struct TableOffsets {
  int64_t layers;
  int64_t tables;
  int64_t end;
};

TableOffsets OffsetsOf(const SplitTables& tables) {
  static_assert(sizeof(SplitLayerTables) % sizeof(int64_t) == 0);
  const int64_t layers = int64_t{sizeof(int64_t)} * tables.num_gpus;
  const int64_t ints = layers + int64_t{sizeof(SplitLayerTables)} * tables.num_layers;
  return {
      .layers = layers, .tables = ints, .end = ints + int64_t{sizeof(int32_t)} * tables.num_tables};
}

template <int kWords>
void SplitAll(const SplitArgs& args) {
  const int64_t bytes = ScratchBytesOfLayer(args.tables, kWords);
  std::vector<int64_t> memory(static_cast<size_t>(bytes) / sizeof(int64_t) + 1);
  for (int32_t index = 0; index < args.num_layers; ++index) {
    SplitOneLayer<kWords>(args, index, reinterpret_cast<std::byte*>(memory.data()), OneThread());
  }
}

}  // namespace

int64_t SplitTableBytes(const SplitTables& tables) { return OffsetsOf(tables).end; }

void PackSplitTables(const SplitTables& tables, std::span<std::byte> bytes) {
  const TableOffsets at = OffsetsOf(tables);
  const auto copy = [&bytes](int64_t begin, int64_t end, const void* from) {
    std::memcpy(bytes.data() + begin, from, static_cast<size_t>(end - begin));
  };
  copy(0, at.layers, tables.speeds);
  copy(at.layers, at.tables, tables.layers);
  copy(at.tables, at.end, tables.tables);
}

SplitTables SplitTablesAt(const SplitTables& tables, const void* address) {
  const TableOffsets at = OffsetsOf(tables);
  const auto* const bytes = static_cast<const std::byte*>(address);
  SplitTables result = tables;
  result.speeds = reinterpret_cast<const int64_t*>(bytes);
  result.layers = reinterpret_cast<const SplitLayerTables*>(bytes + at.layers);
  result.tables = reinterpret_cast<const int32_t*>(bytes + at.tables);
  return result;
}

int64_t SplitScratchBytes(const SplitTables& tables, int32_t num_layers) {
  const int64_t bytes = ScratchBytesOfLayer(tables, NumSplitWords(tables.num_gpus));
  return bytes <= kSplitSharedBytes ? 0 : bytes * num_layers;
}

absl::Status CheckSplitArgs(const SplitArgs& args) {
  if (args.first_layer < 0 || args.num_layers < 0 ||
      args.num_layers > args.tables.num_layers - args.first_layer) {
    return InvalidInput("split of ", args.num_layers, " layers from layer ", args.first_layer,
                        " on: they are not all among ", args.tables.num_layers, " layers");
  }
  if (args.tables.num_gpus < 1 || args.tables.num_gpus > kMaxSplitGpus) {
    return InvalidInput("split over ", args.tables.num_gpus, " GPUs by the kernel, expected 1..",
                        kMaxSplitGpus, "; BatchSplitter splits over more on the CPU");
  }
  if (args.num_sources < 1 || args.source < 0 || args.source >= args.num_sources) {
    return InvalidInput("source ", args.source, " of ", args.num_sources,
                        " sources, expected one of 1 or more");
  }
  if (args.num_layers == 0) return absl::OkStatus();
  if (args.tables.speeds == nullptr || args.tables.layers == nullptr ||
      args.tables.tables == nullptr || args.counts == nullptr || args.quotas == nullptr ||
      args.refused == nullptr) {
    return InvalidInput("split of ", args.num_layers,
                        " layers needs tables, counts, quotas and refused, one of them is null");
  }
  return absl::OkStatus();
}

absl::Status SplitOnHost(const SplitArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckSplitArgs(args));
  if (NumSplitWords(args.tables.num_gpus) == 1) {
    SplitAll<1>(args);
  } else {
    SplitAll<2>(args);
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
