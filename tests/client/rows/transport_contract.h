// The contract of every Transport. The claims are in transport_contract.cc and
// transport_contract_ends.cc and run against each kind that instantiates the suite.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <vector>

#include "client/rows/transport.h"
#include "tests/client/rows/queue_memory.h"

namespace eplb {

using Transports = std::vector<std::unique_ptr<Transport>>;
using MakeTransports = Transports (*)(int32_t world_size, int64_t staging_bytes);

struct TransportKind {
  // Implicit: a kind in host memory is written as its function.
  // NOLINTNEXTLINE(google-explicit-constructor)
  TransportKind(MakeTransports make_world, MakeQueue make_queue = nullptr)
      : make(make_world), queue(make_queue) {}
  MakeTransports make;
  MakeQueue queue;  // queue of the memory that rows and staging lie in; null: the host's

  // In messages.
  friend void PrintTo(const TransportKind& kind, std::ostream* out) {
    *out << (kind.queue == nullptr ? "HostMemory" : "QueueMemory");
  }
};

class TransportContractTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  TransportContractTest() : memory_(GetParam().queue) {}
  void SetUp() override { SkipWithout(GetParam().queue); }

  Transports Make(int32_t world_size, int64_t staging_bytes) {
    Transports transports = GetParam().make(world_size, staging_bytes);
    EXPECT_EQ(transports.size(), static_cast<size_t>(world_size));
    return transports;
  }

  // Memory of rows and staging.
  QueueMemory& memory() { return memory_; }

 private:
  QueueMemory memory_;
};

inline std::vector<std::byte> RandomBytes(std::mt19937& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t at = 0; at < size; at += sizeof(uint32_t)) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), size - at));
  }
  return bytes;
}

// Polls all ranks in turn from one thread, without waiting, until each is done or has failed; null
// transports are skipped. The results by rank.
std::vector<absl::StatusOr<Progress>> Drive(const Transports& transports,
                                            const std::vector<Ticket>& tickets);

// Polls until the post is done or has failed.
absl::StatusOr<Progress> Finish(Transport& transport, Ticket ticket);

// Drives posts that must all succeed.
void MustDrive(const Transports& transports, const std::vector<Ticket>& tickets);

// REQUIRES: the post is accepted.
Ticket MustPost(Transport& transport, RowMoves moves);

// Posts of row 0 in round 0, and of no row.
RowMoves SendOne(RankId to, uint64_t post_id, std::span<const std::byte> bytes, int64_t offset = 0);
RowMoves ReceiveOne(RankId from, uint64_t post_id, int64_t bytes, int64_t offset = 0);
RowMoves Nothing(uint64_t post_id);

}  // namespace eplb
