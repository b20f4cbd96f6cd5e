// The contract of replica rows over every transport. The claims are in replica_contract.cc and run
// against each kind that instantiates the suite.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "client/rows/replica_rows.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {

// The ranks of an EP group as threads, with rows of every element type in their slots and a plain
// copy of all rows to work out what must come.
class ReplicaGroup {
 public:
  ReplicaGroup(const Placement& placement, const TransportKind& kind, int64_t staging_bytes);

  // New rows everywhere: random ones, or those that `other` has for the same expert's primary.
  void Fill(std::mt19937_64& random);
  void FillPrimariesAs(const ReplicaGroup& other);
  // On the plain copy.
  void SumPlainly();
  void BroadcastPlainly();
  std::vector<double> SquaresPlainly() const;
  // Rows, and what lies between them, that differ from the plain copy.
  int32_t CountWrong();

  // Results of all ranks; a rank in `absent` does not take part, and its transport is destroyed.
  using Body = std::function<absl::Status(int32_t rank, EpGroupCall& call)>;
  std::vector<absl::Status> Run(const Body& body, int32_t absent = -1);
  std::vector<absl::Status> Carry(ReplicaFlow flow, int32_t absent = -1);
  std::span<const ReplicaTensor> tensors(int32_t rank) const {
    return tensors_[static_cast<size_t>(rank)];
  }
  uint64_t num_posts() const { return num_posts_.front(); }

 private:
  // Row of tensor `tensor` (of all layers) in a slot.
  std::span<std::byte> PlainRow(size_t tensor, SlotId slot);
  std::span<const std::byte> PlainRow(size_t tensor, SlotId slot) const {
    return const_cast<ReplicaGroup*>(this)->PlainRow(tensor, slot);
  }
  void WriteRows();
  // Calls visitor(tensor, the expert's slots).
  template <class Visitor>
  void VisitExperts(const Visitor& visitor) const;

  const Placement placement_;
  const int32_t num_ranks_;
  QueueMemory memory_;
  std::vector<std::vector<ReplicaTensor>> tensors_;            // [ranks]
  std::vector<std::vector<std::span<std::byte>>> buffers_;     // [ranks][tensors]
  std::vector<std::vector<std::vector<std::byte>>> expected_;  // [ranks][tensors]
  std::vector<std::unique_ptr<RowCarrier>> carriers_;
  std::vector<uint64_t> num_posts_;  // [ranks]
};

class ReplicaContractTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  void SetUp() override { SkipWithout(GetParam().queue); }
};

}  // namespace eplb
