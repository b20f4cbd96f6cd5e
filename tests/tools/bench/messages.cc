#include "tests/tools/bench/messages.h"

#include <vector>

#include <grpcpp/support/proto_buffer_reader.h>

#include "placement/digest.h"
#include "proto/wire/convert.h"

namespace eplb::bench {

grpc::ByteBuffer ToBytes(const v1::Up& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

bool FromBytes(const grpc::ByteBuffer& bytes, v1::Down* message) {
  grpc::ByteBuffer shared = bytes;
  grpc::ProtoBufferReader reader(&shared);
  return message->ParseFromZeroCopyStream(&reader);
}

bool SameBytes(const grpc::ByteBuffer& a, const grpc::ByteBuffer& b) {
  if (a.Length() != b.Length()) return false;
  std::vector<grpc::Slice> left;
  std::vector<grpc::Slice> right;
  if (!a.Dump(&left).ok() || !b.Dump(&right).ok()) return false;
  std::string flat;  // bytes of a; b is compared slice by slice
  flat.reserve(a.Length());
  for (const grpc::Slice& slice : left) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  size_t at = 0;
  for (const grpc::Slice& slice : right) {
    if (flat.compare(at, slice.size(), reinterpret_cast<const char*>(slice.begin()),
                     slice.size()) != 0) {
      return false;
    }
    at += slice.size();
  }
  return true;
}

grpc::ByteBuffer HelloOf(const BenchJob& job, int rank, const Placement& running) {
  wire::Hello hello;
  hello.job = job.name;
  hello.run_id = "bench";
  hello.nonce = static_cast<uint64_t>(rank) + 1;
  hello.rank = rank;
  hello.world_size = job.world_size;
  hello.gpu = rank % job.shape.num_gpus;
  hello.ep_group = rank / job.shape.num_gpus;
  hello.shape = job.shape;
  hello.running_digest = DigestOf(running);
  hello.vote_every = 1;
  hello.report_every = job.report_every;
  hello.staging_rows = job.shape.num_slots;
  hello.staging_layers = job.shape.num_layers;
  hello.library_version = "eplb-bench";
  v1::Up message;
  wire::ToProto(wire::UpMessage(hello), &message);
  return ToBytes(message);
}

grpc::ByteBuffer ReportOf(const BenchJob& job, int64_t window, const LoadMatrix& counts) {
  v1::Up message;
  wire::ToProto(wire::UpMessage(wire::LoadReport{.first_step = window * job.report_every,
                                                 .last_step = (window + 1) * job.report_every - 1,
                                                 .counts = counts}),
                &message);
  return ToBytes(message);
}

}  // namespace eplb::bench
