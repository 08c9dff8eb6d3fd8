// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstring>

#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "hyperslab/io/tensorboard.hpp"
#include "timing/complaint.hpp"

namespace hyperslab::io {
namespace {

static_assert(std::endian::native == std::endian::little, "records are written as they lie");

// Numbers of fields in event.proto and summary.proto, and how protocol buffers write their values.
constexpr std::uint32_t kWallTime = 1;
constexpr std::uint32_t kStep = 2;
constexpr std::uint32_t kFileVersion = 3;
constexpr std::uint32_t kSummary = 5;
constexpr std::uint32_t kSessionLog = 7;
constexpr std::string_view kStarts = "\x08\x01";  // SessionLog: field 1, status START
constexpr std::uint32_t kSummaryValue = 1;
constexpr std::uint32_t kTag = 1;
constexpr std::uint32_t kSimpleValue = 2;
enum class Wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void add_varint(std::string& out, std::uint64_t value) {
  constexpr std::uint64_t kMore = 0x80;
  for (; value >= kMore; value >>= 7U) out += static_cast<char>(value | kMore);
  out += static_cast<char>(value);
}

void add_key(std::string& out, std::uint32_t field, Wire wire) {
  add_varint(out, field << 3U | static_cast<std::uint32_t>(wire));
}

template <class Number>
void add_number(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

void add_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  add_key(out, field, Wire::bytes);
  add_varint(out, bytes.size());
  out += bytes;
}

/// An event without content.
std::string event_at(std::int64_t step) {
  using Seconds = std::chrono::duration<double>;
  std::string event;
  add_key(event, kWallTime, Wire::fixed64);
  add_number(event, Seconds(std::chrono::system_clock::now().time_since_epoch()).count());
  add_key(event, kStep, Wire::varint);
  add_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

/// TensorFlow's: rotated and offset, so that a checksum of data with checksums stays one.
std::uint32_t masked_crc(std::string_view data) {
  constexpr std::uint32_t kOffset = 0xA282EAD8U;
  return std::rotr(crc32c(data.data(), data.size()), 15) + kOffset;
}

std::string record_of(const std::string& event) {
  std::string record;
  add_number(record, std::uint64_t{event.size()});
  add_number(record, masked_crc(record));
  record += event;
  add_number(record, masked_crc(event));
  return record;
}

std::string path_in(const std::string& folder, const std::string& host) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{}/events.out.tfevents.{}.{}.{}", folder,
                     std::chrono::duration_cast<std::chrono::seconds>(now).count(), host, getpid());
}

}  // namespace

struct TensorboardLog::Impl {
  Impl(const std::string& name, std::int64_t first_step)
      : path(name), file(storage::File::create(name)) {
    std::string version = event_at(0);
    add_bytes(version, kFileVersion, "brain.Event:2");
    std::string start = event_at(first_step);
    add_bytes(start, kSessionLog, kStarts);
    write(record_of(version) + record_of(start));
  }
  /// Throws Error(storage); the file keeps whole records only.
  void write(const std::string& record) {
    try {
      file.write_at(end, record.data(), record.size());
    } catch (const Error&) {
      file.set_size(end);
      throw;
    }
    end += record.size();
  }

  std::string path;
  storage::File file;
  std::uint64_t end = 0;
  Complaint complaint;
};

TensorboardLog::TensorboardLog(const std::string& folder, const std::string& host,
                               std::int64_t first_step) {
  storage::make_folder(folder);
  impl_ = std::make_unique<Impl>(path_in(folder, host), first_step);
}

TensorboardLog::TensorboardLog(TensorboardLog&&) noexcept = default;
TensorboardLog& TensorboardLog::operator=(TensorboardLog&&) noexcept = default;
TensorboardLog::~TensorboardLog() = default;

const std::string& TensorboardLog::path() const { return impl_->path; }

void TensorboardLog::append(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string scalar;
    add_bytes(scalar, kTag, tag);
    add_key(scalar, kSimpleValue, Wire::fixed32);
    add_number(scalar, static_cast<float>(value));
    add_bytes(summary, kSummaryValue, scalar);
  }
  std::string event = event_at(step);
  add_bytes(event, kSummary, summary);
  try {
    impl_->write(record_of(event));
    impl_->complaint.resolve(impl_->path + ": written again");
  } catch (const Error& error) {
    impl_->complaint.warn(fmt::format("{}; training goes on without this record", error.what()));
  }
}

}  // namespace hyperslab::io
