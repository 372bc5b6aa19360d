# Models of lme4 and mgcv for benchmarks/terms.py. Seconds are those of the processor.
#
#     Rscript benchmarks/peers_terms.R tables FOLDER [quick]
#
# fits lme4's own tables: writes FOLDER/NAME.csv, FOLDER/components.csv (model, group, first, second, value: standard
# deviations, and correlations where there is a second name), FOLDER/fixed.csv (model, name, value) and
# FOLDER/seconds.csv (model, seconds).
#
#     Rscript benchmarks/peers_terms.R smooths FOLDER
#
# reads FOLDER/smooths.csv (set, family, x, y) and writes FOLDER/curves.csv (fit, se) by gam(method = "REML"), a line
# for every row.
#
#     Rscript benchmarks/peers_terms.R additive FOLDER [quick]
#
# reads FOLDER/additive.csv (y, x0 to x4) and writes FOLDER/additive_seconds.csv (model, seconds): bam of all rows, and
# gam(method = "REML") of the first 20,000.
#
# Ends with status 3 where a package is not installed.

arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[2]
quick <- length(arguments) > 2 && arguments[3] == "quick"
needed <- if (arguments[1] == "tables") "lme4" else "mgcv"
if (!requireNamespace(needed, quietly = TRUE)) quit(status = 3)
suppressPackageStartupMessages(library(needed, character.only = TRUE))
save_table <- function(name, table) write.csv(table, file.path(folder, paste0(name, ".csv")), row.names = FALSE)
# The least time of up to so many runs, of which short ones are repeated.
seconds_of <- function(work, most = 5) {
  best <- Inf
  for (k in seq_len(most)) {
    best <- min(best, sum(system.time(work())[1:2]))
    if (best > 1) break
  }
  best
}

tables <- function() {
  components <- fixed <- seconds <- NULL
  keep <- function(name, table, work) {
    save_table(sub(",.*", "", name), table)
    fit <- suppressMessages(suppressWarnings(work()))
    time <- seconds_of(function() suppressMessages(suppressWarnings(work())))
    found <- as.data.frame(VarCorr(fit))
    components <<- rbind(components, data.frame(
      model = name, group = found$grp, first = found$var1, second = found$var2, value = found$sdcor
    ))
    fixed <<- rbind(fixed, data.frame(model = name, name = names(fixef(fit)), value = fixef(fit)))
    seconds <<- rbind(seconds, data.frame(model = name, seconds = time))
  }
  normal <- function(name, table, formula) keep(name, table, function() lmer(formula, table, REML = TRUE))
  general <- function(name, table, formula, family) {
    keep(name, table, function() glmer(formula, table, family = family))
  }

  normal("sleepstudy", sleepstudy, Reaction ~ Days + (Days | Subject))
  normal("sleepstudy, uncorrelated", sleepstudy, Reaction ~ Days + (Days || Subject))
  normal("Dyestuff", Dyestuff, Yield ~ 1 + (1 | Batch))
  normal("Penicillin", Penicillin, diameter ~ 1 + (1 | plate) + (1 | sample))
  normal("Pastes", Pastes, strength ~ 1 + (1 | batch / cask))
  cake$temperature <- factor(cake$temperature, ordered = FALSE)
  normal("cake", cake, angle ~ recipe * temperature + (1 | recipe:replicate))
  students <- InstEval[as.integer(InstEval$s) <= if (quick) 100 else Inf, ]
  normal("InstEval", students, y ~ service + (1 | s) + (1 | d) + (1 | dept:service))

  binary <- cbpp[rep(seq_len(nrow(cbpp)), cbpp$size), c("herd", "period")]
  binary$ill <- unlist(mapply(function(k, n) rep(1:0, c(k, n - k)), cbpp$incidence, cbpp$size))
  general("cbpp", binary, ill ~ period + (1 | herd), binomial)
  VerbAgg$yes <- as.integer(VerbAgg$r2 == "Y")
  answers <- VerbAgg[as.integer(VerbAgg$id) <= if (quick) 60 else Inf, ]
  general("VerbAgg", answers, yes ~ Anger + Gender + btype + situ + (1 | id) + (1 | item), binomial)
  grouseticks$height <- (grouseticks$HEIGHT - mean(grouseticks$HEIGHT)) / 100
  general("grouseticks", grouseticks, TICKS ~ YEAR + height + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION), poisson)

  save_table("components", components)
  save_table("fixed", fixed)
  save_table("seconds", seconds)
}

smooths <- function() {
  data <- read.csv(file.path(folder, "smooths.csv"))
  found <- lapply(split(data, data$set), function(one) {
    fit <- gam(y ~ s(x, k = 20), family = get(one$family[1])(), data = one, method = "REML")
    predicted <- predict(fit, se.fit = TRUE)
    data.frame(row = as.integer(rownames(one)), fit = predicted$fit, se = predicted$se.fit)
  })
  found <- do.call(rbind, found)
  save_table("curves", found[order(found$row), c("fit", "se")])
}

additive <- function() {
  data <- read.csv(file.path(folder, "additive.csv"))
  formula <- y ~ s(x0, k = 20) + s(x1, k = 20) + s(x2, k = 20) + s(x3, k = 20) + s(x4, k = 20)
  control <- list(nthreads = 1)
  first <- data[seq_len(min(if (quick) 2000 else 20000, nrow(data))), ]
  seconds <- c(
    seconds_of(function() bam(formula, binomial, data, discrete = TRUE, nthreads = 1)),
    seconds_of(function() gam(formula, binomial, first, method = "REML", control = control), 1)
  )
  save_table("additive_seconds", data.frame(model = c("bam", "gam"), seconds = seconds))
}

list(tables = tables, smooths = smooths, additive = additive)[[arguments[1]]]()
