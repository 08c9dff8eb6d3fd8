/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for an OpenBLAS that is older than the processor; reports every start of a program. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

char* openblas_get_corename(void);

char* openblas_get_corename(void) {
  static char name[] = "Prescott";
  return name;
}

__attribute__((constructor)) static void report(void) {
  const char* kernels = getenv("OPENBLAS_CORETYPE");
  char name[16] = "";
  (void)prctl(PR_GET_NAME, name);
  fprintf(stderr, "kernels: %s %s\n", kernels == NULL ? "none" : kernels, name);
  const char* spins = getenv("GOMP_SPINCOUNT");
  fprintf(stderr, "spins: %s\n", spins == NULL ? "none" : spins);
}
