# Variance components of lme4's own tables, by REML (normal) and by glmer (binomial, Poisson), for benchmarks/evidence.py.
#
#     Rscript benchmarks/peers.R FOLDER [quick]
#
# writes every table as FOLDER/NAME.csv and all components as FOLDER/components.csv: model, component, sd, seconds.
# Ends with status 3 where lme4 is not installed.

arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]
quick <- length(arguments) > 1 && arguments[2] == "quick"
if (!requireNamespace("lme4", quietly = TRUE)) quit(status = 3)
suppressPackageStartupMessages(library(lme4))

found <- NULL
keep <- function(model, fit, seconds) {
  table <- as.data.frame(VarCorr(fit))
  component <- ifelse(is.na(table$var1) | table$var1 == "(Intercept)", table$grp, table$var1)
  found <<- rbind(found, data.frame(model = model, component = component, sd = table$sdcor, seconds = seconds))
}
save_table <- function(name, table) write.csv(table, file.path(folder, paste0(name, ".csv")), row.names = FALSE)

normal <- function(name, table, formula) {
  save_table(name, table)
  seconds <- system.time(fit <- lmer(formula, table, REML = TRUE))[["elapsed"]]
  keep(name, fit, seconds)
}
general <- function(name, table, formula, family) {
  save_table(sub(",.*", "", name), table)
  seconds <- system.time(suppressWarnings(fit <- glmer(formula, table, family = family)))[["elapsed"]]
  keep(name, fit, seconds)
}

normal("Dyestuff", Dyestuff, Yield ~ 1 + (1 | Batch))
normal("sleepstudy", sleepstudy, Reaction ~ Days + (1 | Subject) + (0 + Days | Subject))
normal("Penicillin", Penicillin, diameter ~ 1 + (1 | plate) + (1 | sample))
normal("Pastes", Pastes, strength ~ 1 + (1 | batch) + (1 | sample))
cake$temperature <- factor(cake$temperature, ordered = FALSE)
cake$cell <- factor(paste(cake$recipe, cake$replicate))
normal("cake", cake, angle ~ recipe + temperature + (1 | replicate) + (1 | cell))
students <- InstEval[as.integer(InstEval$s) <= if (quick) 100 else Inf, ]
normal("InstEval", students, y ~ 1 + (1 | s) + (1 | d) + (1 | dept))

general("cbpp", cbpp, cbind(incidence, size - incidence) ~ period + (1 | herd), binomial)
VerbAgg$yes <- as.integer(VerbAgg$r2 == "Y")
answers <- VerbAgg[as.integer(VerbAgg$id) <= if (quick) 60 else Inf, ]
general("VerbAgg, one factor", answers, yes ~ Anger + Gender + btype + situ + (1 | id), binomial)
general("VerbAgg", answers, yes ~ Anger + Gender + btype + situ + (1 | id) + (1 | item), binomial)
grouseticks$height <- (grouseticks$HEIGHT - mean(grouseticks$HEIGHT)) / 100
general("grouseticks, one factor", grouseticks, TICKS ~ YEAR + height + (1 | BROOD), poisson)
general("grouseticks", grouseticks, TICKS ~ YEAR + height + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION), poisson)

write.csv(found, file.path(folder, "components.csv"), row.names = FALSE)
