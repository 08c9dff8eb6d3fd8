/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libcuda.so.1 of a machine whose driver is older than the CUDA of the program. */

int cuDriverGetVersion(int* version);
int cuInit(unsigned flags);

int cuDriverGetVersion(int* version) {
  *version = 12020; /* 12.2 */
  return 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}
