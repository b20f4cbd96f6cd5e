// The messages of a bench's ranks, as bytes that many sessions share.
#pragma once

#include <cstdint>
#include <string>

#include <grpcpp/support/byte_buffer.h>

#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

#include "eplb/v1/session.pb.h"

namespace eplb::bench {

grpc::ByteBuffer ToBytes(const v1::Up& message);
// False when the bytes are no message.
bool FromBytes(const grpc::ByteBuffer& bytes, v1::Down* message);
bool SameBytes(const grpc::ByteBuffer& a, const grpc::ByteBuffer& b);

// A job as all its ranks say it in Hello.
struct BenchJob {
  std::string name;
  TopologyOptions shape;
  int world_size = 1;
  int report_every = 1;
};

// running: what every rank runs, at version 0 or as committed.
grpc::ByteBuffer HelloOf(const BenchJob& job, int rank, const Placement& running);
// Window number `window` of the job.
grpc::ByteBuffer ReportOf(const BenchJob& job, int64_t window, const LoadMatrix& counts);

}  // namespace eplb::bench
