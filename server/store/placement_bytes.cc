// The bytes of a placement: a magic, the shape, the two maps that make the placement.
#include "server/store/placement_bytes.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "placement/topology.h"

namespace eplb {
namespace {

constexpr std::string_view kMagic = "EPLBPLC1";
constexpr size_t kShapeNumbers = 6;
constexpr size_t kNumberBytes = 4;

void Append(int32_t number, std::string* out) {
  const auto bits = static_cast<uint32_t>(number);
  for (uint32_t shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>((bits >> shift) & 0xffU));
  }
}

int32_t NumberAt(std::string_view bytes, size_t index) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[index * kNumberBytes + i]);
    bits |= static_cast<uint32_t>(byte) << (8 * i);
  }
  return static_cast<int32_t>(bits);
}

void AppendMatrix(const IndexMatrix& matrix, std::string* out) {
  for (Eigen::Index i = 0; i < matrix.size(); ++i) Append(matrix.data()[i], out);
}

IndexMatrix MatrixAt(std::string_view bytes, size_t first, const Topology& topology) {
  IndexMatrix matrix(topology.num_layers(), topology.num_slots());
  for (Eigen::Index i = 0; i < matrix.size(); ++i) {
    matrix.data()[i] = NumberAt(bytes, first + static_cast<size_t>(i));
  }
  return matrix;
}

absl::Status Unreadable(const std::string& why) {
  return DataLoss("a stored placement is not readable: ", why);
}

}  // namespace

std::string PlacementToBytes(const Placement& placement) {
  const Topology& topology = placement.topology();
  std::string bytes(kMagic);
  bytes.reserve(kMagic.size() +
                kNumberBytes *
                    (kShapeNumbers + 2 * static_cast<size_t>(placement.replica_rank().size())));
  for (const int32_t number : {topology.num_layers(), topology.num_experts(), topology.num_slots(),
                               topology.num_gpus(), topology.num_nodes(), topology.num_groups()}) {
    Append(number, &bytes);
  }
  AppendMatrix(placement.physical_to_logical_map(), &bytes);
  AppendMatrix(placement.replica_rank(), &bytes);
  return bytes;
}

absl::StatusOr<Placement> PlacementFromBytes(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) return Unreadable("wrong magic");
  bytes.remove_prefix(kMagic.size());
  if (bytes.size() < kShapeNumbers * kNumberBytes) return Unreadable("it ends within the shape");
  const absl::StatusOr<Topology> topology = Topology::Make({.num_layers = NumberAt(bytes, 0),
                                                            .num_experts = NumberAt(bytes, 1),
                                                            .num_slots = NumberAt(bytes, 2),
                                                            .num_gpus = NumberAt(bytes, 3),
                                                            .num_nodes = NumberAt(bytes, 4),
                                                            .num_groups = NumberAt(bytes, 5)});
  if (!topology.ok()) return Unreadable(std::string(topology.status().message()));
  const size_t cells =
      static_cast<size_t>(topology->num_layers()) * static_cast<size_t>(topology->num_slots());
  const size_t expected = kNumberBytes * (kShapeNumbers + 2 * cells);
  if (bytes.size() != expected) {
    return Unreadable(absl::StrCat(bytes.size(), " bytes, its shape needs ", expected));
  }
  absl::StatusOr<Placement> placement =
      Placement::FromSlotsAndRanks(*topology, MatrixAt(bytes, kShapeNumbers, *topology),
                                   MatrixAt(bytes, kShapeNumbers + cells, *topology));
  if (!placement.ok()) return Unreadable(std::string(placement.status().message()));
  return placement;
}

}  // namespace eplb
