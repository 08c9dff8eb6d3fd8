// SPDX-License-Identifier: Apache-2.0
#include "amx.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hyperslab::ops::cpu {

bool may_use_amx(AmxProducts products) {
  constexpr unsigned kTiles = 1U << 24U;
  const unsigned kind = products == AmxProducts::int8 ? 1U << 25U : 1U << 22U;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kTiles) == 0 || (edx & kind) == 0) return false;
  // Linux hands out the state of tiles on request: ARCH_REQ_XCOMP_PERM of XTILEDATA.
  static const bool granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return granted;
}

}  // namespace hyperslab::ops::cpu
#else
namespace hyperslab::ops::cpu {

bool may_use_amx(AmxProducts) { return false; }

}  // namespace hyperslab::ops::cpu
#endif
