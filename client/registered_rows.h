// The rows that a rank registered, what moves them, and the numbers of their posts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/rows/derived_tensors.h"
#include "client/rows/executor.h"
#include "client/rows/square_sums.h"
#include "placement/migration_plan.h"

namespace eplb {

// Empty before Client::RegisterExperts.
struct RegisteredRows {
  // Returns the number of the next post, equal on all ranks.
  uint64_t NextPost() { return ++num_posts; }
  // All ranks voted, so all have the rows of all posts so far.
  void NoteVote() { posts_before_vote = num_posts; }
  bool PeersMayStillRead() const { return num_posts != posts_before_vote; }

  std::unique_ptr<Executor> executor = {};
  std::unique_ptr<ExpertSquareSums> expert_squares = {};  // is destroyed before the executor
  std::vector<DerivedTensor> derived = {};
  std::vector<int32_t> pipeline_stage_of_layer = {};  // [layers], the stage that registered it
  MigrationOptions migration = {};  // with the bytes of the job, so that EP groups plan alike
  int32_t staging_layers = 0;       // layers that fit into the staging of each rank of the job
  bool on_device = false;
  std::string first_transport_reason = {};  // why the first transport is not another one
  bool told_transport = false;              // the daemon knows that the transport changed
  uint64_t num_posts = 0;
  uint64_t posts_before_vote = 0;
};

}  // namespace eplb
