// Trains the tiny mixture of experts on ranks that are threads, each with its client, its slots and
// its part of the tokens, and migrates the experts meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "client/client.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {

inline constexpr int64_t kOracleSteps = 24;
// A switch after every fourth step: to a random permutation, and with the next one back.
inline constexpr int64_t kOracleSwitches = kOracleSteps / 4;

struct OracleOptions {
  int32_t num_ranks = 4;                // kTokens is a multiple
  int32_t num_gpus = 0;                 // GPUs of an EP group; 0: one EP group of all ranks
  int32_t pipeline_parallel_size = 1;   // layers are dealt to them in turn
  int32_t expert_tensor_parallel = 1;   // each of them holds all of an expert here
  MakeTransports transports = nullptr;  // transports of a job that migrates; otherwise host
  StatePlacement state_placement = StatePlacement::kEveryReplica;
  bool migrate = false;
  std::string forgotten = "";  // a tensor that is left unregistered
  bool check = false;          // CheckExperts in the middle; what it finds ends the job
};

struct Trained {
  absl::Status status;  // the first error of any rank
  int64_t num_switches = 0;
  std::vector<float> losses;  // [steps, tokens]
  // [layers, experts], every byte of weights and state; equal in all EP groups, or `status` says
  // so.
  std::vector<std::string> experts;
};

Trained Train(const OracleOptions& options);

}  // namespace eplb
