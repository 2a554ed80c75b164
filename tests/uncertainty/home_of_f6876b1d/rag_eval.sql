BEGIN TRANSACTION;
CREATE TABLE audit_draws (
	draw_id TEXT NOT NULL, 
	claim_id TEXT NOT NULL, 
	target TEXT NOT NULL, 
	k BIGINT NOT NULL, 
	inclusion_probability DOUBLE NOT NULL, 
	at TEXT NOT NULL
);
INSERT INTO "audit_draws" VALUES('201b888d4e9f1bf7','cccccccccccccccccccccccccccccccc','miss_any',10,1.0,'2026-03-01T12:00:05.000000Z');
CREATE TABLE audit_frames (
	draw_id TEXT NOT NULL, 
	strategy TEXT NOT NULL, 
	strategy_fingerprint TEXT NOT NULL, 
	target TEXT NOT NULL, 
	depth BIGINT NOT NULL, 
	n BIGINT NOT NULL, 
	population BIGINT NOT NULL, 
	seed BIGINT NOT NULL, 
	batch BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	at TEXT NOT NULL
);
INSERT INTO "audit_frames" VALUES('201b888d4e9f1bf7','bm25','f1','miss_any',20,1,1,1,1,1,'2026-03-01T12:00:05.000000Z');
CREATE TABLE miss_rate_promotions (
	dataset TEXT NOT NULL, 
	strategy TEXT NOT NULL, 
	target TEXT NOT NULL, 
	k BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	strategy_fingerprint TEXT NOT NULL, 
	old_status TEXT NOT NULL, 
	new_status TEXT NOT NULL, 
	figures_before TEXT, 
	figures_after TEXT, 
	reasons TEXT, 
	calibrator_id TEXT, 
	at TEXT NOT NULL
);
INSERT INTO "miss_rate_promotions" VALUES('tiny','bm25','miss_any',10,1,'f1','absent','provisional',NULL,'{"counts": {}}','[]',NULL,'2026-03-01T12:00:00+00:00');
CREATE TABLE production_claims (
	claim_id TEXT NOT NULL, 
	query_id TEXT NOT NULL, 
	group_id TEXT NOT NULL, 
	strategy TEXT NOT NULL, 
	strategy_fingerprint TEXT NOT NULL, 
	"query" TEXT NOT NULL, 
	retrieved TEXT NOT NULL, 
	k BIGINT NOT NULL, 
	miss_rate DOUBLE, 
	at TEXT, 
	batch BIGINT NOT NULL, 
	imported_at TEXT NOT NULL
);
INSERT INTO "production_claims" VALUES('cccccccccccccccccccccccccccccccc','q-1','g','bm25','f1','where is it','[["d1", 1.0], ["d2", null]]',10,0.25,NULL,1,'2026-03-01T12:00:00.000000Z');
CREATE TABLE retrieval_outcomes (
	outcome_id TEXT NOT NULL, 
	claim_id TEXT NOT NULL, 
	query_id TEXT NOT NULL, 
	group_id TEXT NOT NULL, 
	strategy TEXT NOT NULL, 
	strategy_fingerprint TEXT NOT NULL, 
	target TEXT NOT NULL, 
	k BIGINT NOT NULL, 
	missed BOOLEAN, 
	missed_content TEXT, 
	agent_success BOOLEAN, 
	gold_source TEXT NOT NULL, 
	gold_strategies TEXT, 
	gold_documents TEXT, 
	audit_depth BIGINT, 
	inclusion_probability DOUBLE, 
	signals TEXT, 
	shown_value DOUBLE, 
	shown_status TEXT NOT NULL, 
	shown_calibrator TEXT, 
	feedback TEXT, 
	supersedes TEXT NOT NULL, 
	note TEXT, 
	at TEXT NOT NULL
);
INSERT INTO "retrieval_outcomes" VALUES('1a5fe6eb2ae4b74dec8f0f627a22acb5','4cb5edc11c2d009d6ff3c7b5597fc515','q1','q1','bm25','f1','miss_any',10,1,'a page',NULL,'qrels','[]','[]',NULL,1.0,'{"tail_ratio": 0.5, "overlap": null}',NULL,'absent',NULL,NULL,'','','2026-03-01T12:00:00.000000Z');
INSERT INTO "retrieval_outcomes" VALUES('33d4e693c5480f45dd80d7aaab06f0e8','4cb5edc11c2d009d6ff3c7b5597fc515','q1','q1','bm25','f1','miss_any',10,NULL,NULL,NULL,'qrels','[]','[]',NULL,1.0,'{"tail_ratio": 0.5, "overlap": null}',NULL,'absent',NULL,NULL,'1a5fe6eb2ae4b74dec8f0f627a22acb5','taken back','2026-03-01T12:00:00.000000Z');
CREATE UNIQUE INDEX uq_retrieval_outcomes_outcome_id ON retrieval_outcomes (outcome_id);
CREATE INDEX ix_retrieval_outcomes_strategy_fingerprint_target_k ON retrieval_outcomes (strategy_fingerprint, target, k);
CREATE UNIQUE INDEX uq_retrieval_outcomes_claim_id_target_k_gold_source_supersedes ON retrieval_outcomes (claim_id, target, k, gold_source, supersedes);
CREATE INDEX ix_retrieval_outcomes_strategy ON retrieval_outcomes (strategy);
CREATE INDEX ix_production_claims_strategy_fingerprint ON production_claims (strategy_fingerprint);
CREATE UNIQUE INDEX uq_production_claims_claim_id ON production_claims (claim_id);
CREATE INDEX ix_miss_rate_promotions_dataset_strategy ON miss_rate_promotions (dataset, strategy);
CREATE INDEX ix_audit_draws_draw_id ON audit_draws (draw_id);
CREATE UNIQUE INDEX uq_audit_draws_claim_id_target ON audit_draws (claim_id, target);
CREATE UNIQUE INDEX uq_audit_frames_draw_id ON audit_frames (draw_id);
CREATE UNIQUE INDEX uq_audit_frames_strategy_fingerprint_target_number ON audit_frames (strategy_fingerprint, target, number);
COMMIT;
